// What is remembered of blocks that are gone: when they went, and why. Bounded; the oldest are
// forgotten first.
#ifndef QUIRE_CACHE_GHOSTS_H_
#define QUIRE_CACHE_GHOSTS_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_map>

#include "quire/identity.h"
#include "quire/ids.h"
#include "quire/stats.h"

namespace quire::cache {

struct Ghost {
  MissReason reason = MissReason::kEvicted;
  uint64_t gone_us = 0;
  TenantId publisher{};
  uint32_t epoch = 0;  // of the publisher; once that has erased its own nobody may hear of it
};

/// Blocks by the first 64 bits of their keys, so a wrong answer is as rare as two equal such
/// numbers, and changes a word in a statistic.
///
/// Threads: not synchronised; the caller holds its lock
class Ghosts {
 public:
  /// Most that one costs the heap: an entry of the map, its bucket and its place in the queue.
  static constexpr uint64_t kBytesEach = 96;

  /// Forgets what is beyond `ghosts_max`.
  void SetCapacity(uint64_t ghosts_max) {
    ghosts_max_ = ghosts_max;
    Shrink();
  }

  void Add(const Digest& key, Ghost ghost) {
    Entry& entry = entries_[Number(key)];
    entry = {.ghost = ghost, .order = next_order_++};
    queue_.push_back({.number = Number(key), .order = entry.order});
    Shrink();
  }
  /// If the block is remembered, this is why it is not here.
  void SetReason(const Digest& key, MissReason reason) {
    const auto found = entries_.find(Number(key));
    if (found != entries_.end()) found->second.ghost.reason = reason;
  }
  /// The block is back.
  void Remove(const Digest& key) { entries_.erase(Number(key)); }
  void Clear() {
    entries_ = {};
    queue_ = {};
  }

  std::optional<Ghost> Find(const Digest& key) const {
    const auto found = entries_.find(Number(key));
    if (found == entries_.end()) return std::nullopt;
    return found->second.ghost;
  }
  bool empty() const { return entries_.empty(); }
  uint64_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Ghost ghost;
    uint64_t order = 0;
  };
  struct Place {
    uint64_t number;
    uint64_t order;  // of the entry when it was queued; another: this place is void
  };

  static uint64_t Number(const Digest& key) {
    uint64_t number = 0;
    std::memcpy(&number, key.data(), sizeof(number));
    return number;
  }

  // Void places count too, so that the queue is bounded as well.
  void Shrink() {
    for (; queue_.size() > ghosts_max_; queue_.pop_front()) {
      const auto found = entries_.find(queue_.front().number);
      if (found != entries_.end() && found->second.order == queue_.front().order) {
        entries_.erase(found);
      }
    }
  }

  uint64_t ghosts_max_ = 0;
  uint64_t next_order_ = 0;
  std::unordered_map<uint64_t, Entry> entries_;
  std::deque<Place> queue_;  // oldest first
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_GHOSTS_H_

// Ghosts: what is remembered of blocks that are gone, when they went, and why. Bounded; the oldest
// are forgotten first.
#ifndef QUIRE_CACHE_STATE_GHOSTS_H_
#define QUIRE_CACHE_STATE_GHOSTS_H_

#include <cstdint>
#include <cstring>
#include <optional>

#include "evict/recent_keys.h"
#include "quire/identity.h"
#include "quire/stats.h"

namespace quire::cache {

/// The first bits of a block's key, which identify it as well as the whole key.
inline uint64_t PolicyKey(const Digest& key) {
  uint64_t number = 0;
  std::memcpy(&number, key.data(), sizeof(number));
  return number;
}

struct Ghost {
  MissReason reason = MissReason::kEvicted;
  uint64_t gone_us = 0;
  TenantId publisher{};
  uint32_t epoch = 0;  // of the publisher; after the next erasure no lookup may see the entry
};

/// Blocks by the first 64 bits of their keys, so a wrong answer is as rare as two equal such
/// numbers, and changes a word in a statistic.
///
/// Threads: not synchronised; the caller holds its lock
class Ghosts {
 public:
  /// Most heap that one entry takes.
  static constexpr uint64_t kBytesEach = evict::RecentKeys<Ghost>::kBytesEach;

  /// Forgets the oldest entries beyond `ghosts_max`.
  void SetCapacity(uint64_t ghosts_max) {
    ghosts_max_ = ghosts_max;
    ghosts_.Trim(ghosts_max_);
  }

  void Add(const Digest& key, Ghost ghost) {
    if (ghosts_max_ == 0) return;
    const auto known = ghosts_.Find(PolicyKey(key));
    if (known.is_none()) ghosts_.Trim(ghosts_max_ - 1);
    ghosts_[ghosts_.AddOrRenew(PolicyKey(key))] = ghost;
  }
  /// The block is back.
  void Remove(const Digest& key) {
    const auto known = ghosts_.Find(PolicyKey(key));
    if (!known.is_none()) ghosts_.Remove(known);
  }
  void Clear() { ghosts_ = {}; }

  std::optional<Ghost> Find(const Digest& key) const {
    const auto known = ghosts_.Find(PolicyKey(key));
    if (known.is_none()) return std::nullopt;
    return ghosts_[known];
  }
  bool empty() const { return ghosts_.size() == 0; }
  uint64_t size() const { return ghosts_.size(); }

 private:
  evict::RecentKeys<Ghost> ghosts_;
  uint64_t ghosts_max_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_GHOSTS_H_

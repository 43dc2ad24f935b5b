// Which paths Pin keeps: by their last block and who asked for it.
#ifndef QUIRE_CACHE_STATE_PINS_H_
#define QUIRE_CACHE_STATE_PINS_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "quire/identity.h"

namespace quire::cache {

/// Pins that stand, and those that are over, whose paths are let go of block by block.
///
/// Threads: not synchronised; the caller holds its lock
class Pins {
  struct Key {
    BlockId last;
    TenantId tenant;
    auto operator<=>(const Key&) const = default;
  };
  struct Pin {
    uint32_t count = 0;
    uint64_t until_us = 0;
    BlockId at{};  // of one that is over: blocks from here to the root are still pinned by it
  };
  using Map = std::map<Key, Pin>;

 public:
  /// Memory for a pin, so that nothing fails once its path is held.
  using Memory = Map::node_type;
  static Memory Reserve() {
    Map one;
    one.emplace();
    return one.extract(one.begin());
  }

  bool contains(BlockId last, TenantId tenant) const {
    return pins_.contains({.last = last, .tenant = tenant});
  }
  /// Another pin of the same path; false: it is the first, and the path has to be held.
  bool AddAnother(BlockId last, TenantId tenant, uint64_t until_us) {
    const auto found = pins_.find({.last = last, .tenant = tenant});
    if (found == pins_.end()) return false;
    found->second.until_us = std::max(found->second.until_us, until_us);
    ++found->second.count;
    return true;
  }
  void AddFirst(Memory memory, BlockId last, TenantId tenant, uint64_t until_us) {
    memory.key() = {.last = last, .tenant = tenant};
    memory.mapped() = {.count = 1, .until_us = until_us};
    next_end_us_ = std::min(next_end_us_, until_us);
    pins_.insert(std::move(memory));
  }
  /// True: that was the last of its kind, and it is over.
  bool Remove(BlockId last, TenantId tenant) {
    const auto pin = pins_.find({.last = last, .tenant = tenant});
    if (--pin->second.count > 0) return false;
    End(pin);
    return true;
  }
  /// Whoever pinned just this path: one such pin is over. False: there is none.
  bool EndOneAt(BlockId last) {
    const auto pin = pins_.lower_bound({.last = last, .tenant = TenantId(0)});
    if (pin == pins_.end() || pin->first.last != last) return false;
    End(pin);
    return true;
  }
  /// No pin ends before; maybe none ends then.
  uint64_t next_end_us() const { return next_end_us_; }
  /// At most so many of those whose time has come are over; ended(last) is called for each.
  template <typename Ended>
  void EndBy(uint64_t now_us, uint32_t most, const Ended& ended) {
    next_end_us_ = UINT64_MAX;
    for (auto next = pins_.begin(); next != pins_.end();) {
      const auto pin = next++;
      if (pin->second.until_us > now_us || most == 0) {
        next_end_us_ = std::min(next_end_us_, pin->second.until_us);
        continue;
      }
      --most;
      ended(pin->first.last);
      End(pin);
    }
  }

  // What is over. The block that a pin has come to is leased for it.

  bool is_ending() const { return !ending_.empty(); }
  BlockId ending_at() const { return ending_.begin()->second.at; }
  /// None: it is done.
  void MoveEnding(BlockId to) {
    ending_.begin()->second.at = to;
    if (to.is_none()) ending_.erase(ending_.begin());
  }
  /// A pin that never was: blocks from there to the root are to be let go of.
  void Abandon(Memory memory, BlockId at) {
    memory.mapped().at = at;
    ending_.insert(std::move(memory));
  }

 private:
  void End(Map::iterator pin) {
    pin->second.at = pin->first.last;
    ending_.insert(pins_.extract(pin));
  }

  Map pins_;
  std::multimap<Key, Pin> ending_;
  uint64_t next_end_us_ = UINT64_MAX;  // or earlier
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_PINS_H_

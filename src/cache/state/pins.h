// The paths that Pin keeps: by their last block and the tenant that asked.
#ifndef QUIRE_CACHE_STATE_PINS_H_
#define QUIRE_CACHE_STATE_PINS_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "quire/identity.h"

namespace quire::cache {

/// Present pins, and ended ones, whose paths are released block by block.
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
    BlockId at{};  // of an ended pin: blocks from here to the root are still pinned by it
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
  /// Counts another pin of the same path; false: it is the first, and the path must be leased.
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
  /// True: the last pin of this kind has ended.
  bool Remove(BlockId last, TenantId tenant) {
    const auto pin = pins_.find({.last = last, .tenant = tenant});
    if (--pin->second.count > 0) return false;
    End(pin);
    return true;
  }
  /// Ends one pin of exactly this path, of any tenant. False: there is none.
  bool EndOneAt(BlockId last) {
    const auto pin = pins_.lower_bound({.last = last, .tenant = TenantId(0)});
    if (pin == pins_.end() || pin->first.last != last) return false;
    End(pin);
    return true;
  }
  /// No pin ends before this time; maybe none ends then.
  uint64_t next_end_us() const { return next_end_us_; }
  /// Ends at most so many of the pins whose time has come; ended(last) is called for each.
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

  // Ended pins. The block that an ended pin has reached is leased for it.

  bool is_ending() const { return !ending_.empty(); }
  BlockId ending_at() const { return ending_.begin()->second.at; }
  /// None: all its blocks are released.
  void MoveEnding(BlockId to) {
    ending_.begin()->second.at = to;
    if (to.is_none()) ending_.erase(ending_.begin());
  }
  /// Ends a pin that was not completed: blocks from there to the root must be released.
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
  uint64_t next_end_us_ = UINT64_MAX;  // a lower bound
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_PINS_H_

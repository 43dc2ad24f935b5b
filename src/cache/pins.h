// Which paths Pin keeps: by their last block and who asked for it.
#ifndef QUIRE_CACHE_PINS_H_
#define QUIRE_CACHE_PINS_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "quire/identity.h"

namespace quire::cache {

/// Threads: not synchronised; the caller holds its lock
class Pins {
 public:
  /// True: it is the first of its kind, and the path has to be held.
  bool Add(BlockId last, TenantId tenant, uint64_t until_us) {
    Pin& pin = pins_[{.last = last, .tenant = tenant}];
    pin.until_us = std::max(pin.until_us, until_us);
    next_end_us_ = std::min(next_end_us_, pin.until_us);
    return ++pin.count == 1;
  }
  bool contains(BlockId last, TenantId tenant) const {
    return pins_.contains({.last = last, .tenant = tenant});
  }
  /// True: that was the last of its kind, and the path has to be let go of.
  bool Remove(BlockId last, TenantId tenant) {
    const auto pin = pins_.find({.last = last, .tenant = tenant});
    if (--pin->second.count > 0) return false;
    pins_.erase(pin);
    return true;
  }
  /// No pin ends before; maybe none ends then.
  uint64_t next_end_us() const { return next_end_us_; }
  /// Takes out those that are over, and returns their last blocks.
  std::vector<BlockId> TakeEnded(uint64_t now_us) {
    next_end_us_ = UINT64_MAX;
    return TakeIf([&](BlockId, const Pin& pin) {
      if (pin.until_us > now_us) next_end_us_ = std::min(next_end_us_, pin.until_us);
      return pin.until_us <= now_us;
    });
  }
  /// The same of those whose last block `is_bad(block)`.
  template <typename IsBad>
  std::vector<BlockId> TakeBad(const IsBad& is_bad) {
    return TakeIf([&](BlockId last, const Pin&) { return is_bad(last); });
  }

 private:
  struct Key {
    BlockId last;
    TenantId tenant;
    auto operator<=>(const Key&) const = default;
  };
  struct Pin {
    uint32_t count = 0;
    uint64_t until_us = 0;
  };

  template <typename Taken>
  std::vector<BlockId> TakeIf(const Taken& taken) {
    std::vector<BlockId> blocks;
    std::erase_if(pins_, [&](const auto& entry) {
      const bool goes = taken(entry.first.last, entry.second);
      if (goes) blocks.push_back(entry.first.last);
      return goes;
    });
    return blocks;
  }

  std::map<Key, Pin> pins_;
  uint64_t next_end_us_ = UINT64_MAX;  // or earlier
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_PINS_H_

// Keys of blocks that were evicted lately.
#ifndef QUIRE_EVICT_GHOST_KEYS_H_
#define QUIRE_EVICT_GHOST_KEYS_H_

#include <cstdint>

#include "evict/recent_keys.h"

namespace quire::evict {

/// The latest keys, first in, first out. Key 0, which names nothing, is not kept.
///
/// Cost: O(1) amortised; at most kBytesEach per key at the time when there were most
class GhostKeys {
 private:
  struct Nothing {};

 public:
  static constexpr uint64_t kBytesEach = RecentKeys<Nothing>::kBytesEach;

  void Add(uint64_t key) {
    if (key != 0) keys_.AddOrRenew(key);
  }
  /// Whether the key was here; it no longer is.
  bool Take(uint64_t key) {
    const auto place = keys_.Find(key);
    if (place.is_none()) return false;
    keys_.Remove(place);
    return true;
  }
  /// Forgets the oldest until no more than `keys_max` are left.
  void Trim(uint64_t keys_max) { keys_.Trim(keys_max); }
  uint64_t size() const { return keys_.size(); }

 private:
  RecentKeys<Nothing> keys_;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_GHOST_KEYS_H_

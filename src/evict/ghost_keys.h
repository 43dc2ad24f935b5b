// Keys of blocks that were evicted lately.
#ifndef QUIRE_EVICT_GHOST_KEYS_H_
#define QUIRE_EVICT_GHOST_KEYS_H_

#include <cstdint>
#include <deque>
#include <unordered_map>

namespace quire::evict {

/// The latest keys, first in, first out. Key 0, which names nothing, is not kept.
///
/// Cost: O(1) amortised; about 70 bytes per key
class GhostKeys {
 public:
  void Add(uint64_t key);
  /// Whether the key was here; it no longer is.
  bool Take(uint64_t key);
  /// Forgets the oldest until no more than `keys_max` are left.
  void Trim(uint64_t keys_max);
  uint64_t size() const { return serials_.size(); }

 private:
  struct Noted {
    uint64_t key;
    uint64_t serial;
  };

  std::unordered_map<uint64_t, uint64_t> serials_;  // by key; never walked
  std::deque<Noted> noted_;                         // oldest first; void if the serial is another
  uint64_t serial_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_GHOST_KEYS_H_

// Keys of blocks that were evicted lately.
#ifndef QUIRE_EVICT_GHOST_KEYS_H_
#define QUIRE_EVICT_GHOST_KEYS_H_

#include <cstdint>
#include <deque>
#include <memory>

namespace quire::evict {

/// The latest keys, first in, first out. Key 0, which names nothing, is not kept.
///
/// Cost: O(1) amortised; about 60 bytes per key
class GhostKeys {
 public:
  GhostKeys();
  ~GhostKeys();
  GhostKeys(const GhostKeys&) = delete;
  GhostKeys& operator=(const GhostKeys&) = delete;

  void Add(uint64_t key);
  /// Whether the key was here; it no longer is.
  bool Take(uint64_t key);
  /// Forgets the oldest until no more than `keys_max` are left.
  void Trim(uint64_t keys_max);
  uint64_t size() const;

 private:
  struct Serials;
  struct Noted {
    uint64_t key;
    uint64_t serial;
  };

  const std::unique_ptr<Serials> serials_;
  std::deque<Noted> noted_;  // oldest first; void if the serial is another
  uint64_t serial_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_GHOST_KEYS_H_

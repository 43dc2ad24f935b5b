// Budget and arena grow and shrink while sequences live: everything is checked before anything is
// changed, and after that only slots that callers take meanwhile can delay it.
#ifndef QUIRE_CACHE_VERBS_RESIZING_H_
#define QUIRE_CACHE_VERBS_RESIZING_H_

#include <cstdint>
#include <expected>
#include <span>
#include <vector>

#include "cache/sequence/sequence_impl.h"
#include "cache/state/locked_state.h"

namespace quire::cache {

/// Threads: any
class Resizing {
 public:
  Resizing(LockedState& cache, const Sequences& sequences) : cache_(cache), sequences_(sequences) {}

  /// As Cache.
  Result<void> Resize(uint64_t hot_bytes);
  uint64_t Trim();

 private:
  Result<void> GrowTo(const Capacity& to) QUIRE_REQUIRES(mutex_);
  Result<void> ShrinkTo(const Capacity& to) QUIRE_REQUIRES(mutex_);
  bool MoveTail() QUIRE_REQUIRES(mutex_);
  std::vector<SlotId> InTheWay(const Capacity& to);
  std::unexpected<Error> Busy(const Capacity& to, std::span<const SlotId> held,
                              uint64_t least_bytes) const;

  LockedState& cache_;
  const Sequences& sequences_;
  Mutex mutex_{LockRank::kCacheResize};  // one Resize at a time
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_RESIZING_H_

// Paths that are pinned, piece by piece, all or nothing.
#ifndef QUIRE_CACHE_PINNING_H_
#define QUIRE_CACHE_PINNING_H_

#include <cstdint>

#include "cache/search.h"
#include "quire/cache.h"

namespace quire::cache {

/// Threads: any
class Pinning {
 public:
  Pinning(LockedState& cache, Search& search) : cache_(cache), search_(search) {}

  /// As Cache.
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us);
  Result<void> Unpin(const AcquireRequest& request);

 private:
  Result<FoundPath> FindToPin(const AcquireRequest& request, const PublishLocation& location);
  Result<bool> PinPath(const PublishLocation& location, const FoundPath& path, uint64_t until_us);

  LockedState& cache_;
  Search& search_;
  Mutex mutex_{LockRank::kCachePin};  // one Pin at a time
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_PINNING_H_

// Pins: paths that the cache itself leases because a caller asked for it, independent of use. Verbs
// on some blocks of a path that was found, which check again what may have changed between holds;
// and the class that runs them over all of the path, or none.
#ifndef QUIRE_CACHE_VERBS_PIN_VERBS_H_
#define QUIRE_CACHE_VERBS_PIN_VERBS_H_

#include <cstdint>

#include "cache/verbs/lookup.h"
#include "quire/cache.h"

namespace quire::cache {

/// Whether all of `blocks` blocks were found, as a prompt that continues after them would find
/// them.
Result<void> CheckToPin(const SlotClasses& classes, uint64_t blocks, const FoundPath& path);
/// Adds the bytes of blocks [begin, end) that the new pin would keep and no pin keeps yet. False:
/// not all is as it was found.
bool CountToPin(const State& state, const FoundPath& path, uint64_t begin, uint64_t end,
                uint64_t& bytes);
/// Whether a tenant may have so many more bytes pinned.
/// Errors: kNoSpace
Result<void> CheckPinLimit(const State& state, const PublishLocation& location, uint64_t bytes);
/// Pins blocks [begin, end). `pinned`: the last pinned block, which the caller keeps leased until
/// it continues, or none. False: not all is as it was found.
bool PinSome(State& state, const PublishLocation& location, const FoundPath& path, uint64_t begin,
             uint64_t end, BlockId& pinned);
/// Records the pin of a path whose last block is `pinned`, leased by the caller until now. False:
/// the block may not be handed out any more, and nothing has changed.
bool EndPinning(State& state, const PublishLocation& location, BlockId pinned, Pins::Memory& memory,
                uint64_t until_us);
/// Removes one pin of the path that was found; UnpinOne releases its blocks.
/// Errors: kNotFound
Result<void> Unpin(State& state, const PublishLocation& location, const FoundPath& path);
/// Releases one block of a pin that has ended (Pins::is_ending).
void UnpinOne(State& state);

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

#endif  // QUIRE_CACHE_VERBS_PIN_VERBS_H_

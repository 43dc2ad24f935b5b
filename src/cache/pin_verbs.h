// Pins: paths that the cache itself leases because a caller asked for it, whoever uses them.
#ifndef QUIRE_CACHE_PIN_VERBS_H_
#define QUIRE_CACHE_PIN_VERBS_H_

#include <cstdint>

#include "cache/state.h"

namespace quire::cache {

/// As Cache::Pin and Unpin of a request whose place is known.
Result<uint64_t> Pin(State& state, const AcquireRequest& request, const PublishLocation& location,
                     uint64_t ttl_us);
Result<void> Unpin(State& state, const AcquireRequest& request, const PublishLocation& location);
/// The path up to a block is pinned once less.
void ReleasePin(State& state, BlockId last);
/// What is never found again need not be kept.
void EndPinsOfBadBlocks(State& state);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_PIN_VERBS_H_

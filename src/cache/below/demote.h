// What memory holds of a prompt leaves it for the store, now instead of when room is needed.
#ifndef QUIRE_CACHE_BELOW_DEMOTE_H_
#define QUIRE_CACHE_BELOW_DEMOTE_H_

#include <cstdint>

#include "cache/verbs/lookup.h"
#include "quire/cache.h"

namespace quire::cache {

/// As Cache::Demote.
///
/// Threads: any
Result<uint64_t> Demote(LockedState& cache, Search& search, const AcquireRequest& request);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_DEMOTE_H_

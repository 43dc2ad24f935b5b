// What is in the cache, for people and monitors: verbs that only look.
#ifndef QUIRE_CACHE_VERBS_ENTRIES_H_
#define QUIRE_CACHE_VERBS_ENTRIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cache/state/locked_state.h"

namespace quire::cache {

/// Most blocks that one hold looks at: of each its own record, and the one before it.
inline constexpr uint32_t kEntriesPerHold = kRecordsPerHold / 2;

/// Appends what can be found of the blocks with ids [begin, begin + kEntriesPerHold), of one
/// account or (none) of all. Needs room for so many in `entries`. False: no ids are above these.
bool AppendEntries(const State& state, uint32_t begin, TenantId account,
                   std::vector<CacheEntry>& entries);

/// As Cache::Entries, stats, BlockMap and FreeSlots; how many sequences there are is not known
/// here.
Result<std::vector<CacheEntry>> EntriesOf(LockedState& cache, const EntriesRequest& request);
CacheStats StatsOf(const State& state);
std::string BlockMapOf(const LockedState& cache);
std::vector<FreeRuns> FreeSlotsOf(const LockedState& cache);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_ENTRIES_H_

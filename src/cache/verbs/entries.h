// The contents of the cache, for people and monitors: verbs that only read.
#ifndef QUIRE_CACHE_VERBS_ENTRIES_H_
#define QUIRE_CACHE_VERBS_ENTRIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cache/state/locked_state.h"

namespace quire::cache {

/// Most blocks that one hold looks at: for each its own record, and its parent's.
inline constexpr uint32_t kEntriesPerHold = kRecordsPerHold / 2;

/// Appends the findable blocks with ids [begin, begin + kEntriesPerHold), of one account or (none)
/// of all. Needs capacity for so many in `entries`. False: no ids are above these.
bool AppendEntries(const State& state, uint32_t begin, TenantId account,
                   std::vector<CacheEntry>& entries);

/// As Cache::Entries, stats, BlockMap and FreeSlots; the number of sequences is filled in by Core.
Result<std::vector<CacheEntry>> EntriesOf(LockedState& cache, const EntriesRequest& request);
CacheStats StatsOf(const State& state);
std::string BlockMapOf(const LockedState& cache);
std::vector<FreeRuns> FreeSlotsOf(const LockedState& cache);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_ENTRIES_H_

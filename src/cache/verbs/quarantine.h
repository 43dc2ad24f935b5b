// Verbs that take a block and all its descendants out of use.
#ifndef QUIRE_CACHE_VERBS_QUARANTINE_H_
#define QUIRE_CACHE_VERBS_QUARANTINE_H_

#include <cstdint>

#include "cache/state/state.h"

namespace quire::cache {

/// Takes a block out of use at once, and all its descendants: if it is damaged, they may have been
/// computed from the damaged bytes. No lookup passes the block, so later holds may mark the rest.
/// Blocks without leases are removed, and pins of them end. `marked` counts the blocks; it must
/// exist until the cache's work is done (State::has_work).
void Quarantine(State& state, BlockId block, BlockState block_state, uint64_t* marked = nullptr);
/// One step of the work that Quarantine left.
void MarkOne(State& state);
/// Before a block is removed: markings that have reached it move on.
void MovePast(State& state, BlockId block);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_QUARANTINE_H_

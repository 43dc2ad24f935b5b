// Blocks that may not be handed out any more, and all that continues them: verbs under the lock.
#ifndef QUIRE_CACHE_VERBS_QUARANTINE_H_
#define QUIRE_CACHE_VERBS_QUARANTINE_H_

#include <cstdint>

#include "cache/state/state.h"

namespace quire::cache {

/// Takes a block out of use at once, and with it all that continues it: if it is damaged, that may
/// have been computed from the damaged bytes. No lookup goes past the block, so the rest may follow
/// when this hold has done enough. What nobody leases goes, and pins of it end. `marked` counts the
/// blocks; it has to stay until the cache's work is done (State::has_work).
void Quarantine(State& state, BlockId block, BlockState block_state, uint64_t* marked = nullptr);
/// One step of what Quarantine left to do.
void MarkOne(State& state);
/// A block goes: markings that have come to it move on.
void MovePast(State& state, BlockId block);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_QUARANTINE_H_

// Who holds what: verbs on holds of slots, leases of blocks, and the lists of what nobody holds.
#ifndef QUIRE_CACHE_VERBS_LEASES_H_
#define QUIRE_CACHE_VERBS_LEASES_H_

#include <cstdint>

#include "cache/state/state.h"

namespace quire::cache {

/// The first bits of a block's key are as good as all, to know it again.
uint64_t PolicyKey(const Digest& key);

/// Whether a block may be handed out: as it was marked, or erased if its publisher, or who wrote
/// one of its slots, was erased since.
BlockState BlockStateOf(const State& state, BlockId block);

/// Another holder for a slot, published or private.
void HoldSlot(State& state, SlotId slot);
/// One holder less. The last one frees it; where its writer was erased it is drained first.
void ReleaseSlot(State& state, SlotId slot);
/// One holder less of a slot that no block has any more.
void FreeIfLast(State& state, SlotId slot);
/// A slot that was drained is free.
void EndDraining(State& state, SlotId slot);
/// What was read without a hold has been read; where it was copied in vain there is nothing left.
void EndReading(State& state);
/// Of several blocks, the one that has these.
void EndReading(State& state, const PerClass<SlotId>& slots);
/// A block has leases more, by a block that continues it or by holders of a slot.
void AddLease(State& state, BlockId block, uint32_t holders = 1);
void DropLease(State& state, BlockId block);
/// Leases blocks of the path to a block (none: there are none), from the root on, till one hold may
/// lease the rest. `leased` is the last of them, leased by the caller for what goes on from there,
/// or none. False: that takes more holds.
bool LeaseTowards(State& state, BlockId block, BlockId& leased);
/// Puts a block where it now belongs among what can be evicted.
void List(State& state, BlockId block);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_LEASES_H_

// Verbs on references of slots and leases of blocks, and on the lists of evictable blocks.
#ifndef QUIRE_CACHE_VERBS_LEASES_H_
#define QUIRE_CACHE_VERBS_LEASES_H_

#include <cstdint>

#include "cache/state/state.h"

namespace quire::cache {

/// Whether a block may be handed out: its mark, or kErased if its publisher, or the writer of one
/// of its slots, was erased since.
BlockState BlockStateOf(const State& state, BlockId block);

/// Adds a reference to a slot, published or private.
void HoldSlot(State& state, SlotId slot);
/// Drops a reference. The last one frees the slot; if its writer was erased the slot is drained
/// first.
void ReleaseSlot(State& state, SlotId slot);
/// Drops the reference of a slot that no block has any more.
void FreeIfLast(State& state, SlotId slot);
/// Frees a slot that was drained.
void EndDraining(State& state, SlotId slot);
/// Ends reading slots without a reference; slots that a dropped copy was written to are free.
void EndReading(State& state);
/// The same for the one block that has these slots.
void EndReading(State& state, const PerClass<SlotId>& slots);
/// Adds leases to a block, for a descendant or for holders of a slot.
void AddLease(State& state, BlockId block, uint32_t holders = 1);
void DropLease(State& state, BlockId block);
/// Leases blocks of the path to a block (none: there are none), from the root on, until one hold
/// may lease the rest. `leased` is the last of them, which the caller keeps leased until it
/// continues, or none. False: more holds are needed.
bool LeaseTowards(State& state, BlockId block, BlockId& leased);
/// Puts a block into the list of evictable blocks where it now belongs.
void List(State& state, BlockId block);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_LEASES_H_

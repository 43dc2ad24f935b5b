// The error of a precision ladder, measured where both forms of a block are there.
#ifndef QUIRE_CACHE_SEQUENCE_MEASURE_ERROR_H_
#define QUIRE_CACHE_SEQUENCE_MEASURE_ERROR_H_

#include "cache/state/form_error.h"
#include "cache/state/locked_state.h"

namespace quire::cache {

/// Of a whole block. Needs memory that the host can reach; waits for the operations on both slots.
///
/// Threads: any; the caller holds both slots, and nothing writes them
FormError MeasureError(const LockedState& cache, SlotId open_slot, SlotId sealed_slot);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_MEASURE_ERROR_H_

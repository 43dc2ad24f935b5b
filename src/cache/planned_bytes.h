// What a context will cost, before anything is allocated.
#ifndef QUIRE_CACHE_PLANNED_BYTES_H_
#define QUIRE_CACHE_PLANNED_BYTES_H_

#include <cstdint>

#include "quire/cache.h"
#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::cache {

struct PlannedBytes {
  uint64_t blocks = 0;       // of the context
  uint64_t block_bytes = 0;  // of one, all layers, as stored
  uint64_t stored = 0;       // bytes of all; of layers with a window as much as lives at once
  uint64_t open_blocks = 0;  // where codecs encode: most that are held in the open form at once
  uint64_t open = 0;         // bytes of these

  uint64_t total() const { return stored + open; }
};

/// The slots of one sequence of `tokens` tokens, appended by at most `step_tokens` between two
/// commits, in a block-major arena: without their page ends and their bookkeeping.
///
/// Errors: as SlotLayout::Create; kInvalidArgument the bytes do not fit into 64 bits
Result<PlannedBytes> PlanBytes(const Geometry& geometry, const NumericProfile& profile,
                               uint64_t tokens, uint64_t step_tokens);

struct PlannedStream {
  uint64_t bytes = 0;        // of the budget (CacheOptions::hot_bytes); saturates
  uint64_t state_bytes = 0;  // of these, lane states
  uint64_t store_bytes = 0;  // that the store must have for the context
};

/// The bytes that a streamed sequence (SequenceOptions::resident_tokens) of `tokens` tokens takes
/// in a cache with such options and a store.
///
/// Errors: as Cache::Create and, of resident_tokens, Cache::Open
Result<PlannedStream> PlanStream(const CacheOptions& options, uint64_t tokens,
                                 const SequenceOptions& sequence);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_PLANNED_BYTES_H_

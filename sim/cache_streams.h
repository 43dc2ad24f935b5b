// Contexts that the simulated caches' memory does not hold: written to the store block by block,
// and read back from it.
#ifndef QUIRE_SIM_CACHE_STREAMS_H_
#define QUIRE_SIM_CACHE_STREAMS_H_

#include <cstdint>
#include <span>
#include <string>

#include "base/prng.h"
#include "cache/test_util.h"
#include "quire/cache.h"

namespace quire::sim {

/// How a context was streamed.
struct Streamed {
  uint64_t tokens = 0;    // committed
  uint64_t resident = 0;  // before that, of its plan
  uint64_t front = 0;     // first tokens, which left memory and are durable in the store
  uint64_t compared = 0;  // tokens of layers that were read back
  std::string wrong{};    // bytes that are not the model's; empty: none
  std::string unread{};   // why tokens that left memory cannot be read; empty: they can
};

/// Whether sequences of such a cache can stream.
bool CanStream(const CacheOptions& options);
/// Writes a context of a plan's prompt in small steps and reads back the blocks that left memory.
Streamed StreamThrough(Cache& cache, Plan plan, const cache::FakeModel& model,
                       std::span<const TokenId> tokens, Prng& prng);

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_STREAMS_H_

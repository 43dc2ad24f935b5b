// Requests whose context streams from the store: because memory cannot hold all of it, or because
// they would rather do that than wait for room or give theirs away.
#ifndef QUIRE_SERVE_SPILL_H_
#define QUIRE_SERVE_SPILL_H_

#include <cstdint>

#include "serve/state.h"

namespace quire::serve {

/// The longest text of which the cache's budget holds every block. The cache refuses longer ones,
/// and may refuse this one: open blocks, and what belongs to a sequence, need room too.
uint64_t TokensThatMayFit(const Cache& cache);
bool MayFit(const Cache& cache, uint64_t tokens);

/// The engine has a store to stream from, and was told how much stays in memory.
bool CanStream(const EngineState& state);
/// The same, and what it computes is found in the store again.
bool CanStream(const EngineState& state, const Task& task);
/// Its next start streams: it has spilled, or memory cannot hold all of it.
bool Streams(const EngineState& state, const Task& task);
/// How it is opened then.
SequenceOptions AsStream(const EngineState& state, const Task& task, SequenceOptions options);
/// What it takes of the budget then. UINT64_MAX: it cannot be.
uint64_t StreamBytes(const EngineState& state, const Task& task);
/// It asked for it, does not do it yet, and takes less memory than now when it does.
bool MaySpill(const EngineState& state, const Task& task);
/// From its next start on it streams.
void Spill(EngineState& state, Task& task);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SPILL_H_

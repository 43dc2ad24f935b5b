// What a step computes: a token of all that generate, and a chunk of prompts besides.
#ifndef QUIRE_SERVE_STEP_PLANNER_H_
#define QUIRE_SERVE_STEP_PLANNER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "serve/preemption.h"
#include "serve/scheduling.h"
#include "serve/state.h"
#include "serve/stepper.h"
#include "serve/waiting.h"

namespace quire::serve {

/// Divides so many tokens among prompts, piece by piece. A piece goes to the least served tenant;
/// in it to prompts of which little is left before those of which twice as much is, and among those
/// alike to the oldest: read in turns, all of them would have their first token when the last one
/// has it.
void DivideChunk(std::span<BatchEntry> prompts, uint64_t tokens, const EngineState& state);

/// Threads:  one
/// Lifetime: all it is made with must outlive it
class StepPlanner {
 public:
  StepPlanner(EngineState& state, Waiting& waiting, Preemption& preemption)
      : state_(state),
        waiting_(waiting),
        preemption_(preemption),
        chunk_(state.options.chunk_tokens_min, state.options.chunk_tokens_max) {}

  /// The next step, with room for it. Where there is none, others give some up, or it is smaller.
  std::vector<BatchEntry> Plan();
  /// Counts a step that was computed, and wakes those that waited for it.
  void TakeIn(std::span<const BatchEntry> entries);
  /// Makes room for an entry of a step, or makes it smaller. False: it takes no part in the step.
  bool Reserve(BatchEntry& entry);
  uint32_t chunk_tokens() const { return chunk_.tokens(); }

 private:
  std::vector<BatchEntry> Choose() const;
  uint64_t DecodesOfAStep() const;
  uint64_t TokensForStages(std::span<const BatchEntry> prompts, uint64_t tokens) const;

  EngineState& state_;
  Waiting& waiting_;
  Preemption& preemption_;
  ChunkSize chunk_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STEP_PLANNER_H_

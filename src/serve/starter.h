// Which waiting requests start, and with how much room.
#ifndef QUIRE_SERVE_STARTER_H_
#define QUIRE_SERVE_STARTER_H_

#include <cstdint>

#include "quire/identity.h"
#include "serve/preemption.h"
#include "serve/prompt_loads.h"
#include "serve/state.h"
#include "serve/waiting.h"

namespace quire::serve {

/// Of those that wait for nothing, or for room: the first by what its tenant was served and its
/// running requests still may be, then by priority, deadline and age. Where the engine holds
/// nothing, who waits for room waits for somebody outside, and is passed over. Null: there is none.
Task* FirstInLine(const EngineState& state, uint64_t now_us);

/// The longest text of which the cache's budget holds every block. The cache refuses longer ones,
/// and may refuse this one: open blocks, and what belongs to a sequence, need room too.
uint64_t TokensThatMayFit(const Cache& cache);

/// Threads:  one
/// Lifetime: all it is made with must outlive it
class Starter {
 public:
  Starter(EngineState& state, const Identity& identity, Waiting& waiting, Preemption& preemption,
          PromptLoads& loads)
      : state_(state),
        identity_(identity),
        waiting_(waiting),
        preemption_(preemption),
        loads_(loads) {}

  /// Looks at waiting requests in order, until one has to wait for room.
  void StartSome(uint64_t now_us);

 private:
  void Look(Task& task);
  bool ContinueSession(Task& task);
  Result<void> Start(Task& task, bool reuse);
  Result<Plan> Acquire(const Task& task, bool reuse, const SequenceOptions* open_as);
  bool MayComputeAll(bool reuse) const;
  bool MayFit(uint64_t tokens) const;
  bool Streams(const Task& task) const;
  uint64_t StreamedStep(uint64_t tokens, SequenceOptions options) const;

  EngineState& state_;
  const Identity& identity_;
  Waiting& waiting_;
  Preemption& preemption_;
  PromptLoads& loads_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STARTER_H_

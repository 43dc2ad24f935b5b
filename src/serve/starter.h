// Which waiting requests start, and with how much room.
#ifndef QUIRE_SERVE_STARTER_H_
#define QUIRE_SERVE_STARTER_H_

#include <cstdint>
#include <optional>

#include "quire/identity.h"
#include "serve/preemption.h"
#include "serve/prompt_loads.h"
#include "serve/state.h"
#include "serve/waiting.h"

namespace quire::serve {

/// Of those that wait for nothing, or for room: the first by what its tenant was served and its
/// running requests still may be, then by priority, deadline and age. Where the engine holds
/// nothing, what waits for room waits for users outside, and is passed over. Those that gave up
/// their room for one of a higher priority come behind it. Null: there is none.
Task* FirstInLine(const EngineState& state, uint64_t now_us);

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
  /// A request that streams, though memory has room for all of it now and no request waits for it,
  /// goes on in memory: with what the store has of it.
  void BringBack(uint64_t now_us);

 private:
  void Look(Task& task);
  bool ContinueSession(Task& task);
  Result<void> Start(Task& task, bool reuse);
  Result<Plan> Acquire(const Task& task, bool reuse, const SequenceOptions* open_as);
  const Identity& IdentityOf(const Task& task) const;
  bool MayComputeAll(bool reuse) const;
  bool IsBringingBack();
  bool BroughtBack(Task& task);
  bool HasRoomFor(const Task& task) const;

  EngineState& state_;
  const Identity& identity_;
  Waiting& waiting_;
  Preemption& preemption_;
  PromptLoads& loads_;
  uint64_t bring_back_us_ = 0;              // not looked for before
  std::optional<RequestId> brings_back_{};  // once its sequence has ended
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STARTER_H_

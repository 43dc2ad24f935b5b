// Which request gives up room for others, and when.
#ifndef QUIRE_SERVE_PREEMPTION_H_
#define QUIRE_SERVE_PREEMPTION_H_

#include <cstdint>

#include "serve/state.h"
#include "serve/waiting.h"

namespace quire::serve {

/// Of the running requests those of the most served tenant, of these the lowest priority, of these
/// the latest. Null: there is none.
Task* FirstToGiveWay(const EngineState& state, bool spare_oldest);
/// So that `task` can start: of its tenant the lowest priority, which must be below its own, of
/// these the latest. Null: there is none.
Task* FirstToGiveWayTo(const Task& task, const EngineState& state);

/// Room is taken from idle sessions first, then from requests whose readers are slow, then from
/// others as above. One that loses its sequence waits to start again.
///
/// Threads:  one
/// Lifetime: all it is made with must outlive it
class Preemption {
 public:
  Preemption(EngineState& state, Waiting& waiting) : state_(state), waiting_(waiting) {}

  /// Whole blocks that it published stay in the cache for its next start, as long as there is room.
  /// A request that may spill does so, instead of waiting for room.
  void Preempt(Task& task, Waits waits);
  /// Notes whose readers are slow, and preempts those unread for EngineOptions::stall_us.
  /// One that was preempted for that may start again once its events are taken.
  void LookAtReaders(uint64_t now_us);
  /// For a user outside the engine: what it gives is not for others of the engine's.
  void GiveWay();
  /// For a request that would start. False: none gives any.
  bool MakeRoomToStart(Task& task);
  /// For a running request that has no room for one token more. False: it takes no part in this
  /// step: it gave way itself, or ended, with `error` if none will ever give any.
  bool MakeRoomToGrow(Task& task, const Error& error);

 private:
  void TakeSequence(Task& task, Waits waits, Endings& endings);
  bool ReleaseIdleSession(Endings& endings);
  bool PreemptPaused(const Task* except);

  EngineState& state_;
  Waiting& waiting_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_PREEMPTION_H_

// Steps of requests whose context streams from the store, or is loaded layer by layer. Each is a
// step of its own, which is put aside while it waits for the store, or when it has had its share
// beside the steps of others.
#ifndef QUIRE_SERVE_STREAMER_H_
#define QUIRE_SERVE_STREAMER_H_

#include <cstdint>

#include "model/model.h"
#include "quire/attention.h"
#include "quire/env.h"
#include "serve/preemption.h"
#include "serve/state.h"
#include "serve/step_planner.h"

namespace quire::serve {

/// Threads:  one
/// Lifetime: all it is made with must outlive it
class Streamer {
 public:
  struct Components {
    model::Model& model;
    AttentionBackend& attention;
    Executor& executor;
  };
  struct Report {
    bool worked = false;
    bool waits = false;  // for the store
  };

  Streamer(const Components& components, EngineState& state, StepPlanner& planner,
           Preemption& preemption)
      : components_(components), state_(state), planner_(planner), preemption_(preemption) {}

  /// Goes on with the step of each task that streams, or begins its next one. `others_us`: how long
  /// the step of all others took just now; 0: there was none, so it may wait for the store.
  Report GoOn(uint64_t others_us);

 private:
  void GoOnWith(Task& task, const Patience& patience, Report& report);
  /// Of the next step of a task, which has room then; 0: it waits, or has ended.
  uint64_t TokensToBegin(Task& task, uint64_t wait_us);
  /// Begins a step of so many tokens, unless that is 0, and goes on with it.
  Result<bool> Compute(Task& task, uint64_t begins, const Patience& patience);
  void Fail(Task& task, Error error);

  const Components components_;
  EngineState& state_;
  StepPlanner& planner_;
  Preemption& preemption_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STREAMER_H_

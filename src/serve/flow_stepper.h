// Steps of tasks that pass through the stages of a model, several at a time.
#ifndef QUIRE_SERVE_FLOW_STEPPER_H_
#define QUIRE_SERVE_FLOW_STEPPER_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "model/step_flow.h"
#include "serve/state.h"
#include "serve/stepper.h"

namespace quire::serve {

/// Threads:  one
/// Lifetime: the flow must outlive it
class FlowStepper {
 public:
  FlowStepper(model::StepFlow& flow, uint64_t vocab) : flow_(flow), vocab_(vocab) {}

  /// Begins a step, if it has entries. Where enough are under way then for all stages to have work,
  /// or none began, it waits for the oldest one and returns its entries as Stepper::Step leaves
  /// them; else none. A task that ended or lost its sequence meanwhile is not among them: what was
  /// computed for it stays in the caches. Tasks fail whose step fails.
  std::vector<BatchEntry> Step(std::span<const BatchEntry> entries, const TaskTable& tasks);
  /// Whether any step is under way.
  bool is_busy() const { return !under_way_.empty(); }

 private:
  // What a task is computed in a step.
  struct Share {
    RequestId task;
    uint64_t start;  // Task::starts(): of the sequence that the step adds to
    TokenRange range;
    bool decoded;
    uint64_t logits;  // rows asked for
  };
  struct UnderWay {
    std::vector<Share> shares;
    std::vector<float> logits;  // [rows asked for by all, vocab]
  };

  void Begin(std::span<const BatchEntry> entries);
  std::vector<BatchEntry> Finish(const TaskTable& tasks);

  model::StepFlow& flow_;
  const uint64_t vocab_;
  std::deque<UnderWay> under_way_;  // oldest first
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_FLOW_STEPPER_H_

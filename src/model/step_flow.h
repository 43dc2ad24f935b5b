// Steps on their way through the stages of a model, of which later ones begin before earlier ones
// end.
#ifndef QUIRE_MODEL_STEP_FLOW_H_
#define QUIRE_MODEL_STEP_FLOW_H_

#include <cstdint>
#include <span>

#include "model/forward.h"
#include "quire/error.h"

namespace quire::model {

/// Steps end in the order in which they began. The bits are those of Model::Step.
///
/// Threads: one
class StepFlow {
 public:
  virtual ~StepFlow() = default;

  /// Stages that compute different steps at the same time.
  virtual uint32_t stages() const = 0;
  /// Begins a step. Sequences are longer by the tokens when it returns, so that the next tokens of
  /// the same sequence may follow at once; the logits come at the step's end.
  ///
  /// Errors:   as Model::StepStage, and what the stages say of any step before. Nothing has begun
  /// Lifetime: the logits of the items must outlive the step, their other fields the call
  virtual Result<void> Begin(std::span<const StepItem> items) = 0;
  /// Waits for the end of the step that began first.
  ///
  /// Errors: a stage could not compute it, or is lost; the message names it. Logits are undefined
  virtual Result<void> Finish() = 0;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_STEP_FLOW_H_

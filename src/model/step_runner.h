// What takes the steps of an engine: the model itself, or ranks that compute it together.
#ifndef QUIRE_MODEL_STEP_RUNNER_H_
#define QUIRE_MODEL_STEP_RUNNER_H_

#include <span>

#include "model/forward.h"
#include "quire/attention.h"
#include "quire/env.h"
#include "quire/error.h"

namespace quire::model {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// As Model::Step.
  virtual Result<void> Step(std::span<const StepItem> items, AttentionBackend& attention,
                            Executor& executor) = 0;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_STEP_RUNNER_H_

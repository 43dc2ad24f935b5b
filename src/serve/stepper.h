// Takes one step of several tasks together, and keeps the faults of one from the others.
#ifndef QUIRE_SERVE_STEPPER_H_
#define QUIRE_SERVE_STEPPER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "model/step_runner.h"
#include "quire/attention.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "serve/task.h"

namespace quire::serve {

/// A running task and how many of its next tokens to compute.
struct BatchEntry {
  Task* task = nullptr;
  uint64_t tokens = 0;
  bool decoded = false;       // the token it generated last; else of what it reads
  uint64_t fresh_tokens = 0;  // out: of these, computed for the first time
  bool lost = false;          // out: a block of its context is lost, and what was before it is not
};

/// The entries for the model, with room in `logits` for what they ask for, one behind the other.
///
/// Shape: logits [rows of all, vocab]; it grows
std::vector<model::StepItem> ItemsOf(std::span<const BatchEntry> entries, uint64_t vocab,
                                     std::vector<float>& logits);

/// The step of a task that streams failed because the store lost a block, or the disk did not read
/// it, and it may begin again: the store forgets what it finds damaged or cannot read twice, so the
/// next start ends before it. Counts.
bool IsLost(Task& task, const Error& error);

/// Threads: one
class Stepper {
 public:
  /// `steps`: takes the steps in the model's place; may be null.
  Stepper(model::Model& model, AttentionBackend& attention, Executor& executor,
          model::StepRunner* steps = nullptr)
      : model_(model), attention_(attention), executor_(executor), steps_(steps) {}

  /// Computes and commits all parts, whose room is reserved. Where a step fails it is taken again
  /// with fewer tasks, down to one, and only those fail that cannot be computed alone: the bits of
  /// a task do not depend on what is computed beside it. One that streams, and whose context the
  /// store has lost a block of, is `lost`: it has to begin again, before that block. One that is
  /// alone and finds no room takes fewer tokens: room for open forms is sure for
  /// SequenceOptions::step_tokens only.
  void Step(std::span<BatchEntry> entries);

 private:
  Result<void> Forward(std::span<BatchEntry> entries, std::vector<BatchEntry*>& left);
  Result<void> StepModel(std::span<const BatchEntry> entries);
  bool GoBack(BatchEntry& entry, std::optional<model::ImportanceObserver> observed);

  model::Model& model_;
  AttentionBackend& attention_;
  Executor& executor_;
  model::StepRunner* const steps_;  // null: the model
  std::vector<float> logits_;       // of one step
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STEPPER_H_

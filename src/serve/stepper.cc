#include "serve/stepper.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace quire::serve {

void Stepper::Step(std::span<StepPart> parts) {
  if (parts.empty()) return;
  std::vector<StepPart*> left;
  auto done = Forward(parts, left);
  if (left.empty()) return;
  if (parts.size() == 1) return parts.front().task->Fail(std::move(done).error());
  // `left` keeps the order of `parts`, whose front is not needed any more.
  for (size_t i = 0; i < left.size(); ++i) std::swap(parts[i], *left[i]);
  Step(parts.first(left.size() / 2));
  Step(parts.subspan(left.size() / 2, left.size() - left.size() / 2));
}

// Takes one step. On error `left` are those that were not computed, as they were before.
Result<void> Stepper::Forward(std::span<StepPart> parts, std::vector<StepPart*>& left) {
  struct Before {
    uint64_t logits;        // rows asked for
    uint64_t length_after;  // of the sequence, once it is computed
    std::optional<model::ImportanceObserver> observed;
  };
  std::vector<Before> before;
  for (const StepPart& part : parts) {
    before.push_back({.logits = part.task->LogitsOf(part.tokens),
                      .length_after = part.task->sequence().length() + part.tokens,
                      .observed = part.task->ObservedSoFar()});
  }
  auto done = StepModel(parts);

  const uint64_t vocab = model_.config().vocab;
  const float* logits = logits_.data();
  for (size_t i = 0; i < parts.size(); ++i) {
    Task& task = *parts[i].task;
    const std::span<const float> rows(logits, before[i].logits * vocab);
    logits += rows.size();
    // A step that fails while it commits has computed everything, and some are through.
    if (done || task.sequence().length() == before[i].length_after) {
      parts[i].fresh_tokens = task.Advance(parts[i].tokens, rows, vocab, profile_);
    } else if (GoBack(parts[i], std::move(before[i].observed))) {
      left.push_back(&parts[i]);
    }
  }
  return done;
}

// After a step that failed. False: it cannot, and failed.
bool Stepper::GoBack(StepPart& part, std::optional<model::ImportanceObserver> observed) {
  part.task->ForgetObservedSince(std::move(observed));
  Sequence& sequence = part.task->sequence();
  auto rolled_back = sequence.Rollback(sequence.length());
  if (!rolled_back) part.task->Fail(std::move(rolled_back).error());
  return rolled_back.has_value();
}

// The model's step. Where memory runs out on the way, sequences may hold uncommitted rows.
Result<void> Stepper::StepModel(std::span<const StepPart> parts) {
  const uint64_t vocab = model_.config().vocab;
  try {
    uint64_t rows = 0;
    for (const StepPart& part : parts) rows += part.task->LogitsOf(part.tokens);
    logits_.resize(std::max<size_t>(logits_.size(), rows * vocab));
    std::vector<model::StepItem> items;
    float* logits = logits_.data();
    for (const StepPart& part : parts) {
      const uint64_t wanted = part.task->LogitsOf(part.tokens);
      items.push_back({.sequence = &part.task->sequence(),
                       .tokens = part.task->NextTokens(part.tokens),
                       .logits = wanted > 0 ? logits : nullptr,
                       .all_logits = part.task->request().all_logits,
                       .observer = part.task->observer()});
      logits += wanted * vocab;
    }
    return model_.Step(items, attention_, executor_);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace, "step: the system has no memory left");
  }
}

}  // namespace quire::serve

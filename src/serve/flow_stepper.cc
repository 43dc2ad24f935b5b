#include "serve/flow_stepper.h"

#include <new>
#include <utility>

namespace quire::serve {

namespace {

// A stage that ends before the others finds its next step at hand.
constexpr uint64_t kStepsBesides = 1;

}  // namespace

std::vector<BatchEntry> FlowStepper::Step(std::span<const BatchEntry> entries,
                                          const TaskTable& tasks) {
  if (!entries.empty()) Begin(entries);
  const bool all_have_work = under_way_.size() >= flow_.stages() + kStepsBesides;
  if (under_way_.empty() || (!entries.empty() && !all_have_work)) return {};
  return Finish(tasks);
}

void FlowStepper::Begin(std::span<const BatchEntry> entries) {
  const auto begin = [&]() -> Result<void> {
    UnderWay step;
    for (const BatchEntry& entry : entries) {
      const Task& task = *entry.task;
      const uint64_t at = task.position();
      step.shares.push_back({.task = task.id(),
                             .start = task.starts(),
                             .range = {.begin = at, .end = at + entry.tokens},
                             .decoded = entry.decoded,
                             .logits = task.text().LogitsOf(at, entry.tokens)});
    }
    const std::vector<model::StepItem> items = ItemsOf(entries, vocab_, step.logits);
    under_way_.push_back(std::move(step));
    const auto begun = flow_.Begin(items);
    if (!begun) under_way_.pop_back();
    return begun;
  };
  Result<void> begun;
  try {
    begun = begin();
  } catch (const std::bad_alloc&) {
    begun = Fail(ErrorCode::kNoSpace, "step: the system has no memory left");
  }
  if (begun) return;
  for (const BatchEntry& entry : entries) entry.task->Fail(begun.error());
}

std::vector<BatchEntry> FlowStepper::Finish(const TaskTable& tasks) {
  const UnderWay step = std::move(under_way_.front());
  const auto done = flow_.Finish();
  under_way_.pop_front();
  std::vector<BatchEntry> entries;
  const float* logits = step.logits.data();
  for (const Share& share : step.shares) {
    const std::span<const float> rows(logits, share.logits * vocab_);
    logits += rows.size();
    Task* const task = tasks.Find(share.task);
    if (task == nullptr || task->ended() || !task->running()) continue;
    if (task->starts() != share.start) continue;
    if (!done) {
      task->Fail(done.error());
      continue;
    }
    const uint64_t fresh = task->Advance(share.range, rows, vocab_);
    entries.push_back({.task = task,
                       .tokens = share.range.end - share.range.begin,
                       .decoded = share.decoded,
                       .fresh_tokens = fresh});
  }
  return entries;
}

}  // namespace quire::serve

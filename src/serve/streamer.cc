#include "serve/streamer.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "serve/stepper.h"

namespace quire::serve {

namespace {

constexpr uint64_t kShareUsMin = 100;
// Alone. What callers ask for meanwhile waits so long.
constexpr uint64_t kAloneUs = 20'000;
constexpr uint64_t kWaitUs = 5'000;

// How long a task that streams may compute between two steps of others, which take `others_us`
// each. One step of all would take at least as long as the longer of the two; with this share a
// token of the others comes at most a fifth later than that. It is never more than the others have.
uint64_t ShareBeside(uint64_t others_us, uint64_t own_step_us) {
  const uint64_t together_us = std::max(others_us, own_step_us);
  return std::clamp(together_us * 6 / 5 - others_us, std::min(kShareUsMin, others_us), others_us);
}

}  // namespace

Streamer::Report Streamer::GoOn(uint64_t others_us) {
  Report report;
  std::vector<Task*> streaming;
  for (Task* const task : state_.tasks.running()) {
    if (state_.StepsAside(*task)) streaming.push_back(task);
  }
  if (streaming.empty()) return report;
  const uint64_t begin_us = state_.clock.NowMicros();
  const uint64_t count = streaming.size();
  for (Task* const task : streaming) {
    // It may have ended, or lost its sequence to one before it.
    if (task->ended() || !task->running() || task->paused_us()) continue;
    const uint64_t share_us =
        others_us == 0 ? kAloneUs : ShareBeside(others_us, task->aside_step_us());
    const Patience patience = {.wait_us = others_us == 0 ? kWaitUs / count : 0,
                               .clock = &state_.clock,
                               .until_us = state_.clock.NowMicros() + share_us / count};
    GoOnWith(*task, patience, report);
  }
  state_.stats.step_us += state_.clock.NowMicros() - begin_us;
  return report;
}

void Streamer::GoOnWith(Task& task, const Patience& patience, Report& report) {
  if (task.aside() == nullptr && !Begin(task, patience.wait_us)) {
    report.waits = report.waits || !task.ended();
    return;
  }
  const uint64_t begin_us = state_.clock.NowMicros();
  Result<bool> through = false;
  try {
    through = task.aside()->GoOn(patience);
  } catch (const std::bad_alloc&) {
    through = quire::Fail(ErrorCode::kNoSpace, "step: the system has no memory left");
  }
  task.CountAside(state_.clock.NowMicros() - begin_us);
  if (!through) {
    report.worked = true;
    return Fail(task, std::move(through).error());
  }
  const bool is_over = patience.IsOver();
  report.worked = report.worked || *through || is_over;
  report.waits = report.waits || !(*through || is_over);
  if (!*through) return;
  const std::unique_ptr<model::StepAside> step = task.TakeAside();
  BatchEntry entry = {.task = &task, .tokens = step->tokens(), .decoded = task.decoding()};
  entry.fresh_tokens =
      task.Advance(step->tokens(), step->logits(), components_.model.config().vocab);
  planner_.TakeIn({&entry, 1});
}

bool Streamer::Begin(Task& task, uint64_t wait_us) {
  StreamedContext& context = *task.sequence().streamed();
  context.Defer();
  if (task.NextTokens(1).empty() || !context.MayStep(wait_us)) return false;
  const uint64_t most = std::min<uint64_t>(planner_.chunk_tokens(), context.rows_max());
  BatchEntry entry = {.task = &task, .tokens = task.NextTokens(most).size()};
  if (!planner_.Reserve(entry) || task.ended() || !task.running()) return false;
  try {
    float wanted = 0;
    const uint64_t logits = task.text().LogitsOf(task.position(), entry.tokens);
    auto step =
        components_.model.BeginAside({.sequence = &task.sequence(),
                                      .tokens = task.NextTokens(entry.tokens),
                                      .logits = logits > 0 ? &wanted : nullptr,
                                      .all_logits = task.text().AllLogitsAt(task.position())},
                                     components_.attention, components_.executor);
    if (!step) {
      Fail(task, std::move(step).error());
      return false;
    }
    task.PutAside(*std::move(step));
  } catch (const std::bad_alloc&) {
    Fail(task, {ErrorCode::kNoSpace, "step: the system has no memory left"});
    return false;
  }
  return true;
}

// What it appended is gone. Where the store has lost a block, it begins again before that one.
void Streamer::Fail(Task& task, Error error) {
  task.TakeAside();
  if (!IsLost(task, error)) return task.Fail(std::move(error));
  ++state_.stats.streams_renewed;
  preemption_.Preempt(task, Waits::kNothing);
}

}  // namespace quire::serve

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
    const Patience patience = {.wait_us = others_us == 0 ? kAloneWaitUs / count : 0,
                               .clock = &state_.clock,
                               .until_us = state_.clock.NowMicros() + share_us / count};
    GoOnWith(*task, patience, report);
  }
  state_.stats.step_us += state_.clock.NowMicros() - begin_us;
  return report;
}

void Streamer::GoOnWith(Task& task, const Patience& patience, Report& report) {
  uint64_t begins = 0;
  if (task.aside() == nullptr) {
    begins = TokensToBegin(task, patience.wait_us);
    if (begins == 0) {
      report.waits = report.waits || !task.ended();
      return;
    }
  }
  const uint64_t begin_us = state_.clock.NowMicros();
  const Result<bool> through = Compute(task, begins, patience);
  if (!through) {
    report.worked = true;
    return Fail(task, through.error());
  }
  task.CountAside(state_.clock.NowMicros() - begin_us);
  const bool is_over = patience.IsOver();
  report.worked = report.worked || *through || is_over;
  report.waits = report.waits || !(*through || is_over);
  if (!*through) return;
  const bool streams = task.sequence().streamed() != nullptr;
  const std::unique_ptr<model::StepAside> step = task.TakeAside();
  BatchEntry entry = {.task = &task, .tokens = step->tokens(), .decoded = task.decoding()};
  const uint64_t at = task.position();
  entry.fresh_tokens = task.Advance({.begin = at - step->tokens(), .end = at}, step->logits(),
                                    components_.model.config().vocab);
  planner_.TakeIn({&entry, 1});
  if (streams || entry.decoded) return;
  // What LoadPolicy::kAuto goes by, as Engine::Tick.
  const uint64_t took_us = task.aside_step_us() - std::min(task.aside_step_us(), step->waited_us());
  state_.stats.read_us += took_us;
  state_.stats.read_tokens += entry.tokens;
  state_.stats.read_rate.Add(took_us, entry.tokens, state_.clock.NowMicros());
}

uint64_t Streamer::TokensToBegin(Task& task, uint64_t wait_us) {
  StreamedContext* const context = task.sequence().streamed();
  if (context != nullptr) context->Defer();
  if (task.NextTokens(1).empty()) return 0;
  uint64_t most = planner_.chunk_tokens();
  if (context != nullptr) {
    if (!context->MayStep(wait_us)) return 0;
    most = std::min<uint64_t>(most, context->rows_max());
  } else {
    const auto first_layer = task.sequence().AwaitLayer(0, wait_us);
    if (!first_layer || !*first_layer) return 0;  // a load that failed is taken at the next Tick
  }
  BatchEntry entry = {.task = &task, .tokens = task.NextTokens(most).size()};
  if (!planner_.Reserve(entry) || task.ended() || !task.running()) return 0;
  return entry.tokens;
}

Result<bool> Streamer::Compute(Task& task, uint64_t begins, const Patience& patience) {
  try {
    if (begins > 0) {
      float wanted = 0;
      const uint64_t at = task.position();
      QUIRE_ASSIGN(auto step,
                   components_.model.BeginAside(
                       {.sequence = &task.sequence(),
                        .tokens = task.NextTokens(begins),
                        .logits = task.text().LogitsOf(at, begins) > 0 ? &wanted : nullptr,
                        .all_logits = task.text().AllLogitsAt(at),
                        .adapter = task.weights_adapter()},
                       components_.attention, components_.executor));
      task.PutAside(std::move(step));
    }
    return task.aside()->GoOn(patience);
  } catch (const std::bad_alloc&) {
    return quire::Fail(ErrorCode::kNoSpace, "step: the system has no memory left");
  }
}

// What it appended is gone. Where the store has lost a block, it begins again before that one, and
// where a load has failed, behind what came of it (PromptLoads).
void Streamer::Fail(Task& task, Error error) {
  task.TakeAside();
  if (!task.sequence().AwaitLayer(0, /*wait_us=*/0)) return;
  if (!IsLost(task, error)) return task.Fail(std::move(error));
  ++state_.stats.streams_renewed;
  preemption_.Preempt(task, Waits::kNothing);
}

}  // namespace quire::serve

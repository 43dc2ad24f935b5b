#include "serve/step_planner.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"

namespace quire::serve {

namespace {

// A chunk is shared out in so many pieces.
constexpr uint32_t kPiecesOfAChunk = 8;
// What is to be read is divided into so many steps for each stage of a model, but not into smaller
// ones than these: those are bound by reading the weights.
constexpr uint32_t kStepsOfAStage = 8;
constexpr uint64_t kStepTokensMin = 64;

}  // namespace

void DivideChunk(std::span<BatchEntry> prompts, uint64_t tokens, const EngineState& state) {
  const uint64_t piece = std::max<uint64_t>(tokens / kPiecesOfAChunk, 1);
  std::map<TenantId, uint64_t> given;
  uint64_t left = tokens;
  const auto place = [&](const BatchEntry& entry) {
    const Task& task = *entry.task;
    return std::tuple(
        state.shares.ServedAfter(task.tenant(), given[task.tenant()]), task.tenant(),
        std::bit_width((task.text().goal() - task.position()) / state.options.chunk_tokens_max),
        task.id());
  };
  while (left > 0) {
    BatchEntry* first = nullptr;
    for (BatchEntry& entry : prompts) {
      if (entry.task->NextTokens(entry.tokens + 1).size() == entry.tokens) continue;  // all of it
      if (first == nullptr || place(entry) < place(*first)) first = &entry;
    }
    if (first == nullptr) return;
    const uint64_t before = first->tokens;
    first->tokens = first->task->NextTokens(before + std::min(piece, left)).size();
    given[first->task->tenant()] += first->tokens - before;
    left -= first->tokens - before;
  }
}

std::vector<BatchEntry> StepPlanner::Plan() {
  std::vector<BatchEntry> entries = Choose();
  // The oldest first: it may take from all others.
  std::ranges::sort(entries, {}, [](const BatchEntry& entry) { return entry.task->id(); });
  for (BatchEntry& entry : entries) {
    // It may have lost its sequence to one before it.
    if (entry.task->running() && !Reserve(entry)) entry.tokens = 0;
  }
  std::erase_if(entries, [](const BatchEntry& entry) {
    return entry.tokens == 0 || entry.task->ended() || !entry.task->running();
  });
  waiting_.RemoveEnded();
  return entries;
}

std::vector<BatchEntry> StepPlanner::Choose() const {
  std::vector<BatchEntry> entries;
  std::vector<BatchEntry> prompts;
  const uint64_t decodes_max = DecodesOfAStep();
  for (Task* const task : state_.tasks.running()) {
    if (Planted(Canary::kStopForReader) && task->paused_us()) return {};
    if (task->paused_us() || state_.StepsAside(*task)) continue;
    if (task->NextTokens(1).empty()) continue;  // it waits for what is being loaded
    if (task->decoding()) {
      if (entries.size() == decodes_max) continue;
      entries.push_back({.task = task, .tokens = 1, .decoded = true});
    } else {
      prompts.push_back({.task = task});
    }
  }
  // Each request that generates waits for the whole step, so the chunk is a small one then.
  const uint32_t tokens = entries.empty() ? chunk_.tokens() : state_.options.chunk_tokens_min;
  DivideChunk(prompts, TokensForStages(prompts, tokens), state_);
  for (BatchEntry& entry : prompts) {
    const StreamedContext* const streamed = entry.task->sequence().streamed();
    if (streamed != nullptr) entry.tokens = std::min<uint64_t>(entry.tokens, streamed->rows_max());
  }
  std::ranges::copy_if(prompts, std::back_inserter(entries), &BatchEntry::tokens);
  return entries;
}

// Stages share those that generate: each computes a step of as many of them.
uint64_t StepPlanner::DecodesOfAStep() const {
  if (state_.stages == 1) return UINT64_MAX;
  const auto generates = [](const Task* task) { return task->text().generated_tokens() > 0; };
  const auto count = std::ranges::count_if(state_.tasks.running(), generates);
  return std::max<uint64_t>(1, DivUp<uint64_t>(static_cast<uint64_t>(count), state_.stages));
}

// While the first step is in the first stage, and the last one in the last, the others have nothing
// to do: the shorter these are the better.
uint64_t StepPlanner::TokensForStages(std::span<const BatchEntry> prompts, uint64_t tokens) const {
  if (state_.stages == 1) return tokens;
  uint64_t left = 0;
  for (const BatchEntry& entry : prompts) {
    left += entry.task->text().goal() - entry.task->position();
  }
  const uint64_t share = DivUp(left, uint64_t{kStepsOfAStage} * state_.stages);
  return std::min(tokens, std::max(share, kStepTokensMin));
}

bool StepPlanner::Reserve(BatchEntry& entry) {
  Task& task = *entry.task;
  while (true) {
    auto reserved = task.Reserve(entry.tokens);
    if (reserved) return true;
    if (reserved.error().code != ErrorCode::kNoSpace) {
      task.Fail(std::move(reserved).error());
      return false;
    }
    if (state_.loads.contains(task.id())) return false;  // what is loaded has its room
    if (entry.tokens > 1) {
      chunk_.Shrink();
      entry.tokens /= 2;
    } else if (!state_.endings.empty()) {
      return false;  // they give some back
    } else if (!preemption_.MakeRoomToGrow(task, reserved.error())) {
      return false;
    }
  }
}

void StepPlanner::TakeIn(std::span<const BatchEntry> entries) {
  if (entries.empty()) return;
  EngineStats& stats = state_.stats;
  ++stats.steps;
  uint64_t prompt_tokens = 0;
  for (const BatchEntry& entry : entries) {
    if (entry.decoded) {
      stats.decode_tokens += entry.tokens;
    } else {
      prompt_tokens += entry.tokens;
    }
    stats.recomputed_tokens += entry.tokens - entry.fresh_tokens;
    state_.shares.Charge(entry.task->tenant(), entry.fresh_tokens);
  }
  stats.prompt_tokens += prompt_tokens;
  stats.step_prompt_tokens_max = std::max(stats.step_prompt_tokens_max, prompt_tokens);
  if (prompt_tokens > 0) {
    const CacheStats cache = state_.cache.stats();
    const uint64_t block_bytes = state_.cache.block_bytes();
    const uint64_t room_bytes =
        cache.hot_bytes_limit - cache.hot_bytes_used + cache.evictable_blocks * block_bytes;
    chunk_.Adapt(room_bytes / block_bytes * state_.cache.options().profile.block_tokens);
  }
  waiting_.LookForRoom();
  waiting_.WakeForPrefix();
}

}  // namespace quire::serve

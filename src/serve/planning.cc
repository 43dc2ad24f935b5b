// What a step computes, and who gives up room for it.
#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "base/canary.h"
#include "serve/engine.h"

namespace quire::serve {

namespace {

// A chunk is shared out in so many pieces.
constexpr uint32_t kPiecesOfAChunk = 8;

}  // namespace

// Everybody who generates, then prompts.
std::vector<BatchEntry> Engine::PlanStep() {
  std::vector<BatchEntry> entries;
  std::vector<BatchEntry> prompts;
  for (Task* const task : running_) {
    if (Planted(Canary::kStopForReader) && task->paused_us()) return {};
    if (task->paused_us()) continue;
    if (task->NextTokens(1).empty()) continue;  // it waits for what is being loaded
    if (task->decoding()) {
      entries.push_back({.task = task, .tokens = 1, .decoded = true});
    } else {
      prompts.push_back({.task = task});
    }
  }
  // Whoever generates waits for the whole step, so the chunk is a small one then.
  DivideChunk(prompts, entries.empty() ? chunk_.tokens() : options_.chunk_tokens_min);
  std::ranges::copy_if(prompts, std::back_inserter(entries), &BatchEntry::tokens);
  return entries;
}

// Pieces go to the least served tenant; in it to prompts of which little is left before those of
// which twice as much is, and among those alike to the oldest: read in turns, all of them would
// have their first token when the last one has it.
void Engine::DivideChunk(std::span<BatchEntry> prompts, uint64_t chunk) {
  const uint64_t piece = std::max<uint64_t>(chunk / kPiecesOfAChunk, 1);
  std::map<TenantId, uint64_t> given;
  uint64_t left = chunk;
  const auto place = [&](const BatchEntry& entry) {
    const Task& task = *entry.task;
    return std::tuple(shares_.ServedAfter(task.tenant(), given[task.tenant()]), task.tenant(),
                      std::bit_width((task.goal() - task.position()) / options_.chunk_tokens_max),
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

void Engine::ReserveCapacity(std::vector<BatchEntry>& entries) {
  // The oldest first: it may take from all others.
  std::ranges::sort(entries, {}, [](const BatchEntry& entry) { return entry.task->id(); });
  for (BatchEntry& entry : entries) {
    // It may have lost its sequence to one before it.
    if (entry.task->running() && !ReserveCapacity(entry)) entry.tokens = 0;
  }
  std::erase_if(entries, [](const BatchEntry& entry) {
    return entry.tokens == 0 || entry.task->ended() || !entry.task->running();
  });
  RemoveEnded();
}

// False: it takes no part in this step.
bool Engine::ReserveCapacity(BatchEntry& entry) {
  Task& task = *entry.task;
  while (true) {
    auto reserved = task.sequence().Reserve(task.sequence().length() + entry.tokens);
    if (reserved) return true;
    if (reserved.error().code != ErrorCode::kNoSpace) {
      task.Fail(std::move(reserved).error());
      return false;
    }
    if (loads_.contains(task.id())) return false;  // what is loaded has its room
    if (entry.tokens > 1) {
      chunk_.Shrink();
      entry.tokens /= 2;
      continue;
    }
    const OnFull on_full = task.request().on_full;
    if (on_full == OnFull::kHalt || on_full == OnFull::kFewer) {
      task.End(Finish::kNoSpace);
      return false;
    }
    if (ReleaseIdleSession() || PreemptPaused(&task)) continue;
    Task* const victim = VictimFor(/*spare_oldest=*/true);
    if (victim == nullptr && options_.outside_retry_us == 0) {
      if (task.starts_whole()) {
        task.Fail(std::move(reserved).error());
      } else {
        // Alone, and short of room: the cache shall say whether all that it may need can ever fit.
        task.StartWhole();
        Preempt(task, Waits::kNothing);
      }
      return false;
    }
    Task& preempted = victim != nullptr ? *victim : task;
    Preempt(preempted, Waits::kRoom);
    if (&preempted == &task) return false;
  }
}

// For a request that would start.
bool Engine::FreeCapacityToStart(const Task& task) {
  if (ReleaseIdleSession() || PreemptPaused(nullptr)) return true;
  Task* victim = nullptr;
  for (Task* const other : running_) {
    if (other->tenant() != task.tenant() || other->ended()) continue;
    const uint8_t priority = other->request().priority;
    if (priority >= task.request().priority) continue;
    if (victim == nullptr || priority <= victim->request().priority) victim = other;
  }
  if (victim == nullptr) return false;
  Preempt(*victim, Waits::kRoom);
  return true;
}

// Of the most served tenant the lowest priority, of these the latest.
Task* Engine::VictimFor(bool spare_oldest) const {
  Task* victim = nullptr;
  const auto place = [this](const Task& task) {
    return std::tuple(shares_.served(task.tenant()), task.tenant(),
                      UINT8_MAX - task.request().priority, task.id());
  };
  bool oldest = true;
  for (Task* const task : running_) {
    if (task->ended()) continue;
    const bool spared = std::exchange(oldest, false) && spare_oldest;
    if (!spared && (victim == nullptr || place(*task) > place(*victim))) victim = task;
  }
  return victim;
}

// Whole blocks that it published stay in the cache for its next start, as long as there is room.
void Engine::Preempt(Task& task, Waits waits) {
  CapacityCameBack();
  TakeSequence(task, waits);
}

void Engine::TakeSequence(Task& task, Waits waits) {
  std::erase(running_, &task);
  loads_.erase(task.id());
  task.Preempt();
  // Else it could start again before anybody looks whether its events were taken.
  if (!mailbox_.HasCapacity(task.id(), Task::kEventsOfAStep)) waits = Waits::kReader;
  if (waits == Waits::kRoom) {
    WaitForCapacity(task);
  } else {
    task.WaitFor(waits);
  }
  ++stats_.preemptions;
  WakePrefixWaiters();
}

bool Engine::ReleaseIdleSession() {
  if (!keeper_.ReleaseOldest()) return false;
  ++stats_.sessions_released;
  return true;
}

bool Engine::PreemptPaused(const Task* except) {
  const auto paused = std::ranges::find_if(running_, [&](const Task* task) {
    return task != except && !task->ended() && task->paused_us();
  });
  if (paused == running_.end()) return false;
  Preempt(**paused, Waits::kReader);
  return true;
}

void Engine::TakeIn(std::span<const BatchEntry> entries) {
  if (entries.empty()) return;
  ++stats_.steps;
  uint64_t prompt_tokens = 0;
  for (const BatchEntry& entry : entries) {
    if (entry.decoded) {
      stats_.decode_tokens += entry.tokens;
    } else {
      prompt_tokens += entry.tokens;
    }
    stats_.recomputed_tokens += entry.tokens - entry.fresh_tokens;
    shares_.Charge(entry.task->tenant(), entry.fresh_tokens);
  }
  stats_.prompt_tokens += prompt_tokens;
  stats_.step_prompt_tokens_max = std::max(stats_.step_prompt_tokens_max, prompt_tokens);
  if (prompt_tokens > 0) {
    const CacheStats cache = components_.cache.stats();
    const uint64_t room_bytes = cache.hot_bytes_limit - cache.hot_bytes_used +
                                cache.evictable_blocks * components_.cache.block_bytes();
    chunk_.Adapt(room_bytes / components_.cache.block_bytes() *
                 components_.cache.options().profile.block_tokens);
  }
  const auto waits_for_capacity = [](const auto& each) {
    return each.second->waits() == Waits::kRoom;
  };
  if (std::ranges::any_of(tasks_, waits_for_capacity)) {
    for (Task* const task : running_) {
      if (!task->ended() && task->GaveBack()) CapacityCameBack();
    }
  }
  WakePrefixWaiters();
}

}  // namespace quire::serve

#include "serve/preemption.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/canary.h"
#include "serve/spill.h"

namespace quire::serve {

Task* FirstToGiveWay(const EngineState& state, bool spare_oldest) {
  const auto place = [&](const Task& task) {
    return std::tuple(state.shares.served(task.tenant()), task.tenant(),
                      UINT8_MAX - task.request().priority, task.id());
  };
  Task* first = nullptr;
  bool oldest = true;
  for (Task* const task : state.tasks.running()) {
    if (task->ended()) continue;
    const bool spared = std::exchange(oldest, false) && spare_oldest;
    if (!spared && (first == nullptr || place(*task) > place(*first))) first = task;
  }
  return first;
}

Task* FirstToGiveWayTo(const Task& task, const EngineState& state) {
  Task* first = nullptr;
  for (Task* const other : state.tasks.running()) {
    if (other->tenant() != task.tenant() || other->ended()) continue;
    const uint8_t priority = other->request().priority;
    if (priority >= task.request().priority) continue;
    if (first == nullptr || priority <= first->request().priority) first = other;
  }
  return first;
}

void Preemption::Preempt(Task& task, Waits waits) {
  waiting_.WakeForRoom();
  if (waits == Waits::kRoom && MaySpill(state_, task)) {
    Spill(state_, task);
    waits = Waits::kNothing;
  }
  TakeSequence(task, waits, state_.endings);
}

void Preemption::TakeSequence(Task& task, Waits waits, Endings& endings) {
  state_.loads.erase(task.id());
  endings.Take(state_.tasks.Stop(task));
  // It may begin with what one of these has computed.
  const bool any_ends = !state_.endings.empty();
  if (waits == Waits::kNothing && any_ends && Streams(state_, task)) waits = Waits::kLoad;
  // Else it could start again before it is seen whether its events were taken.
  if (!state_.mailbox.HasCapacity(task.id(), task.EventsOfAStep())) waits = Waits::kReader;
  if (waits == Waits::kRoom) {
    waiting_.WaitForRoom(task);
  } else {
    task.WaitFor({.what = waits});
  }
  ++state_.stats.preemptions;
  waiting_.WakeForPrefix();
}

void Preemption::LookAtReaders(uint64_t now_us) {
  std::vector<Task*> stalled;
  for (Task* const task : state_.tasks.running()) {
    if (task->ended()) continue;
    if (state_.mailbox.HasCapacity(task->id(), task->EventsOfAStep())) {
      task->SetPaused(std::nullopt);
    } else if (!task->paused_us()) {
      task->SetPaused(now_us);
      waiting_.WakeForRoom();  // they may take it from this one
    } else if (now_us - *task->paused_us() >= state_.options.stall_us &&
               !Planted(Canary::kStopForReader)) {
      stalled.push_back(task);
    }
  }
  for (Task* const task : stalled) Preempt(*task, Waits::kReader);
  for (const auto& [id, task] : state_.tasks.all()) {
    if (task->ended() || task->running() || task->wait().what != Waits::kReader) continue;
    if (!state_.mailbox.IsDrained(id)) continue;
    task->WaitFor({});
    state_.may_start = true;
  }
  waiting_.WakeForPrefix();  // of those that stand still
}

// Without outside_retry_us: long enough for the caller to take what the request gave.
constexpr uint64_t kRetryUs = 100'000;

void Preemption::GiveWay() {
  Endings at_once;  // the one outside takes the room before this engine's own look for it
  if (ReleaseIdleSession(at_once)) return;
  Task* const task = FirstToGiveWay(state_, /*spare_oldest=*/false);
  if (task == nullptr) return;
  TakeSequence(*task, Waits::kRoom, at_once);
  // Also for those behind it, where it waits for its reader.
  const uint64_t retry_us = state_.options.outside_retry_us;
  waiting_.RetryIn(retry_us > 0 ? retry_us : kRetryUs);
}

bool Preemption::MakeRoomToStart(Task& task) {
  if (ReleaseIdleSession(state_.endings) || PreemptPaused(nullptr)) return true;
  Task* const other = FirstToGiveWayTo(task, state_);
  if (other == nullptr) return false;
  Preempt(*other, Waits::kRoom);
  task.TakeRoom();
  return true;
}

bool Preemption::MakeRoomToGrow(Task& task, const Error& error) {
  const OnFull on_full = task.request().on_full;
  if (on_full == OnFull::kHalt || on_full == OnFull::kFewer) {
    task.End(Finish::kNoSpace);
    return false;
  }
  if (ReleaseIdleSession(state_.endings) || PreemptPaused(&task)) return true;
  if (MaySpill(state_, task)) {
    Preempt(task, Waits::kRoom);
    return false;
  }
  Task* other = FirstToGiveWay(state_, /*spare_oldest=*/true);
  // The oldest would give way to it if it started now. Were it spared here, the two would take the
  // room from each other for ever.
  if (other == nullptr || other == &task) {
    if (Task* const lower = FirstToGiveWayTo(task, state_)) other = lower;
  }
  // What is loaded for others has its room already, which they give back when they are done.
  const bool others_load = state_.holders() > state_.tasks.running().size();
  if (other != nullptr) {
    Preempt(*other, Waits::kRoom);
  } else if (state_.options.outside_retry_us > 0 || others_load || state_.leased) {
    Preempt(task, Waits::kRoom);
  } else if (task.starts_whole()) {
    task.Fail(error);
  } else {
    // Alone, and short of room: the cache shall say whether all that it may need can ever fit.
    task.StartWhole();
    Preempt(task, Waits::kNothing);
  }
  return other != nullptr && other != &task;
}

bool Preemption::ReleaseIdleSession(Endings& endings) {
  if (!state_.keeper.ReleaseOldest(endings)) return false;
  ++state_.stats.sessions_released;
  return true;
}

bool Preemption::PreemptPaused(const Task* except) {
  const auto running = state_.tasks.running();
  const auto paused = std::ranges::find_if(running, [&](const Task* task) {
    return task != except && !task->ended() && task->paused_us();
  });
  if (paused == running.end()) return false;
  Preempt(**paused, Waits::kReader);
  return true;
}

}  // namespace quire::serve

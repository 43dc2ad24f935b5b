#include "serve/preemption.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/canary.h"
#include "serve/order.h"

namespace quire::serve {

void Preemption::Preempt(Task& task, Waits waits) {
  waiting_.WakeForRoom();
  TakeSequence(task, waits);
}

void Preemption::TakeSequence(Task& task, Waits waits) {
  state_.loads.erase(task.id());
  state_.tasks.Stop(task);
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
    if (state_.mailbox.HasCapacity(task->id(), Task::kEventsOfAStep)) {
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

void Preemption::GiveWay() {
  if (ReleaseIdleSession()) return;
  Task* const task = FirstToGiveWay(state_.tasks, state_.shares, /*spare_oldest=*/false);
  if (task != nullptr) TakeSequence(*task, Waits::kRoom);
}

bool Preemption::MakeRoomToStart(const Task& task) {
  if (ReleaseIdleSession() || PreemptPaused(nullptr)) return true;
  Task* const other = FirstToGiveWayTo(task, state_.tasks);
  if (other != nullptr) Preempt(*other, Waits::kRoom);
  return other != nullptr;
}

bool Preemption::MakeRoomToGrow(Task& task, const Error& error) {
  if (task.request().on_full == OnFull::kHalt) {
    task.End(Finish::kNoSpace);
    return false;
  }
  if (ReleaseIdleSession() || PreemptPaused(&task)) return true;
  Task* const other = FirstToGiveWay(state_.tasks, state_.shares, /*spare_oldest=*/true);
  if (other != nullptr) {
    Preempt(*other, Waits::kRoom);
  } else if (state_.options.outside_retry_us > 0) {
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

bool Preemption::ReleaseIdleSession() {
  if (!state_.keeper.ReleaseOldest()) return false;
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

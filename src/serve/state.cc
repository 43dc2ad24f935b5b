#include "serve/state.h"

#include <algorithm>
#include <utility>

namespace quire::serve {

void TaskTable::Add(std::unique_ptr<Task> task) {
  const RequestId id = task->id();
  tasks_.emplace(id, std::move(task));
}

Task* TaskTable::Find(RequestId id) const {
  const auto found = tasks_.find(id);
  return found == tasks_.end() ? nullptr : found->second.get();
}

void TaskTable::Start(Task& task, std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
                      uint64_t loaded_tokens) {
  task.Start(std::move(sequence), std::move(missing), loaded_tokens);
  task.NoteHeld();
  if (task.position() >= task.text().goal()) return task.End(Finish::kLength);  // a session's
  running_.insert(std::ranges::lower_bound(running_, task.id(), {}, &Task::id), &task);
}

std::unique_ptr<Sequence> TaskTable::Stop(Task& task) {
  std::erase(running_, &task);
  return task.Preempt();
}

std::unique_ptr<Sequence> TaskTable::Withdraw(Task& task) {
  std::erase(running_, &task);
  return task.Withdraw();
}

std::vector<std::unique_ptr<Task>> TaskTable::TakeEnded() {
  std::erase_if(running_, [](const Task* task) { return task->ended(); });
  std::vector<std::unique_ptr<Task>> ended;
  for (auto each = tasks_.begin(); each != tasks_.end();) {
    if (each->second->ended()) {
      ended.push_back(std::move(each->second));
      each = tasks_.erase(each);
    } else {
      ++each;
    }
  }
  return ended;
}

uint64_t EngineState::holders() const {
  const auto waiting = std::ranges::count_if(
      loads, [](const auto& each) { return !each.second.computes && !each.second.arrives; });
  return tasks.running().size() + static_cast<uint64_t>(waiting) + openings.size() + endings.size();
}

}  // namespace quire::serve

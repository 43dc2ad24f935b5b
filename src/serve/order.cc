#include "serve/order.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace quire::serve {

namespace {

bool IsInLine(const Task& task, const Queue& queue) {
  if (task.running() || task.ended()) return false;
  const Waits what = task.wait().what;
  return what == Waits::kNothing || (what == Waits::kRoom && !queue.passes_waiting_for_room);
}

}  // namespace

Task* FirstInLine(const TaskTable& tasks, const FairShare& shares, const Queue& queue) {
  std::map<TenantId, uint64_t> coming;
  for (const Task* const task : tasks.running()) {
    const uint64_t at_most = task->text().tokens_at_most();
    coming[task->tenant()] += at_most - std::min(task->position(), at_most);
  }
  const auto place = [&](const Task& task) {
    const uint64_t waited_us = queue.now_us - std::min(queue.now_us, task.submitted_us());
    const uint64_t urgency = task.request().priority + waited_us / queue.aging_us;
    const uint64_t deadline_us = task.request().deadline_us;
    return std::tuple(shares.ServedAfter(task.tenant(), coming[task.tenant()]), task.tenant(),
                      UINT64_MAX - urgency, deadline_us == 0 ? UINT64_MAX : deadline_us, task.id());
  };
  Task* first = nullptr;
  for (const auto& [id, task] : tasks.all()) {
    if (!IsInLine(*task, queue)) continue;
    if (first == nullptr || place(*task) < place(*first)) first = task.get();
  }
  return first;
}

Task* FirstToGiveWay(const TaskTable& tasks, const FairShare& shares, bool spare_oldest) {
  const auto place = [&](const Task& task) {
    return std::tuple(shares.served(task.tenant()), task.tenant(),
                      UINT8_MAX - task.request().priority, task.id());
  };
  Task* first = nullptr;
  bool oldest = true;
  for (Task* const task : tasks.running()) {
    if (task->ended()) continue;
    const bool spared = std::exchange(oldest, false) && spare_oldest;
    if (!spared && (first == nullptr || place(*task) > place(*first))) first = task;
  }
  return first;
}

Task* FirstToGiveWayTo(const Task& task, const TaskTable& tasks) {
  Task* first = nullptr;
  for (Task* const other : tasks.running()) {
    if (other->tenant() != task.tenant() || other->ended()) continue;
    const uint8_t priority = other->request().priority;
    if (priority >= task.request().priority) continue;
    if (first == nullptr || priority <= first->request().priority) first = other;
  }
  return first;
}

}  // namespace quire::serve

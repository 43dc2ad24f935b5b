// The order of requests: who starts first, and who gives up room first.
#ifndef QUIRE_SERVE_ORDER_H_
#define QUIRE_SERVE_ORDER_H_

#include <cstdint>

#include "serve/scheduling.h"
#include "serve/task_table.h"

namespace quire::serve {

struct Queue {
  uint64_t now_us;
  uint64_t aging_us;             // waiting for so long counts as one priority
  bool passes_waiting_for_room;  // else they hold up those behind them
};

/// Of those that wait for nothing, or for room: the first by what its tenant was served and its
/// running requests still may be, then by priority, deadline and age. Null: there is none.
Task* FirstInLine(const TaskTable& tasks, const FairShare& shares, const Queue& queue);

/// Of the most served tenant the lowest priority, of these the latest. Null: there is none.
Task* FirstToGiveWay(const TaskTable& tasks, const FairShare& shares, bool spare_oldest);
/// So that `task` can start: of its tenant the lowest priority, which must be below its own, of
/// these the latest. Null: there is none.
Task* FirstToGiveWayTo(const Task& task, const TaskTable& tasks);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ORDER_H_

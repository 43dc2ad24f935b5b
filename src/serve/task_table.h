// The requests of one engine, and which of them run.
#ifndef QUIRE_SERVE_TASK_TABLE_H_
#define QUIRE_SERVE_TASK_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "serve/task.h"

namespace quire::serve {

/// Those that run are those that hold a sequence. One that has ended is here until TakeEnded.
///
/// Threads: one
class TaskTable {
 public:
  void Add(std::unique_ptr<Task> task);
  /// Null: it was taken out.
  Task* Find(RequestId id) const;
  /// By age.
  const std::map<RequestId, std::unique_ptr<Task>>& all() const { return tasks_; }
  /// Oldest first. As long as nobody starts, stops or is taken out.
  std::span<Task* const> running() const { return running_; }

  /// Runs with this from now on; see Task::Start.
  void Start(Task& task, std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
             uint64_t loaded_tokens);
  /// Gives its sequence back, and waits from now on.
  void Stop(Task& task);
  /// Those that have ended since the last call.
  std::vector<std::unique_ptr<Task>> TakeEnded();

 private:
  std::map<RequestId, std::unique_ptr<Task>> tasks_;
  std::vector<Task*> running_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TASK_TABLE_H_

// What the objects of one engine work on: its requests, what is loaded for them, and what they got.
#ifndef QUIRE_SERVE_STATE_H_
#define QUIRE_SERVE_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "quire/cache.h"
#include "quire/env.h"
#include "serve/endings.h"
#include "serve/engine_options.h"
#include "serve/mailbox.h"
#include "serve/scheduling.h"
#include "serve/session_keeper.h"
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
  /// Oldest first. As long as none starts, stops or is taken out.
  std::span<Task* const> running() const { return running_; }

  /// Runs with this from now on; see Task::Start.
  void Start(Task& task, std::unique_ptr<Sequence> sequence, std::vector<MissRun> missing,
             uint64_t loaded_tokens);
  /// Returns its sequence, and it waits from now on.
  std::unique_ptr<Sequence> Stop(Task& task);
  /// The same of one whose sequence does not get what it began with; see Task::Withdraw.
  std::unique_ptr<Sequence> Withdraw(Task& task);
  /// Those that have ended since the last call.
  std::vector<std::unique_ptr<Task>> TakeEnded();

 private:
  std::map<RequestId, std::unique_ptr<Task>> tasks_;
  std::vector<Task*> running_;
};

/// What the store has of a request's text, on its way. The request waits, or computes the front, or
/// layer by layer what is behind it.
struct Loading {
  Ticket ticket;
  SequenceOptions options;  // to open it with
  uint64_t resident;        // tokens before it
  uint64_t tokens;          // to be loaded
  bool computes = false;    // the request runs: it computes the front
  bool arrives = false;     // the request runs: its sequence has the layers that have come
  bool may_arrive = true;   // until it has found no room to begin with some layers
};

/// A sequence that streams, on its way: what stays in memory is read. The request waits.
struct StreamStart {
  std::unique_ptr<Opening> opening;
  uint64_t prompt;  // tokens
  uint64_t there;   // of these, that the store had
  MissReason reason;
  std::vector<MissRun> missing;  // if all that was there comes
};

/// For the store, where nothing else is to be done: what callers ask for meanwhile waits so long.
inline constexpr uint64_t kAloneWaitUs = 5'000;

/// Threads:  one
/// Lifetime: what the references name must outlive it
struct EngineState {
  Cache& cache;
  const Clock& clock;
  Mailbox& mailbox;
  SessionKeeper& keeper;
  const EngineOptions options;
  const uint32_t query_heads = 1;  // of the model's layers
  const uint32_t stages = 1;       // that compute different steps at the same time (FlowStepper)
  const bool steps_aside = false;  // those that wait for the store are not stepped with others
  FairShare shares{};
  TaskTable tasks{};
  std::map<RequestId, Loading> loads{};         // of `tasks`
  std::map<RequestId, StreamStart> openings{};  // the same
  Endings endings{};
  bool may_start = false;  // something changed for a waiting request
  // A part of the cache is leased (BudgetLeases): a request that does not fit into the rest waits.
  bool leased = false;
  EngineStats stats{};

  /// Its steps are its own (Streamer).
  bool StepsAside(Task& task) const {
    if (!steps_aside || !task.running()) return false;
    return task.aside() != nullptr || task.sequence().streamed() != nullptr ||
           task.sequence().arrives();
  }
  /// Requests that hold a sequence, or room for one.
  uint64_t holders() const;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STATE_H_

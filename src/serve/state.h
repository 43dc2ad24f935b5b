// What the objects of one engine work on.
#ifndef QUIRE_SERVE_STATE_H_
#define QUIRE_SERVE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <map>

#include "quire/cache.h"
#include "quire/env.h"
#include "serve/engine_options.h"
#include "serve/mailbox.h"
#include "serve/scheduling.h"
#include "serve/session_keeper.h"
#include "serve/task_table.h"

namespace quire::serve {

/// What the store has of a request's text, on its way. The request waits, or computes the front.
struct Loading {
  Ticket ticket;
  SequenceOptions options;  // to open it with
  uint64_t resident;        // tokens before it
  uint64_t tokens;          // to be loaded
  bool computes = false;    // the request runs
};

/// Threads:  one
/// Lifetime: what the references name must outlive it
struct EngineState {
  Cache& cache;
  const Clock& clock;
  Mailbox& mailbox;
  SessionKeeper& keeper;
  const EngineOptions options;
  FairShare shares{};
  TaskTable tasks{};
  std::map<RequestId, Loading> loads{};  // of `tasks`
  bool may_start = false;                // something changed for a waiting request
  EngineStats stats{};

  /// Requests that hold a sequence, or room for one.
  uint64_t holders() const {
    const auto waiting =
        std::ranges::count_if(loads, [](const auto& each) { return !each.second.computes; });
    return tasks.running().size() + static_cast<uint64_t>(waiting);
  }
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_STATE_H_

// What turns an engine, and how its callers wait: a thread in production, or the caller's own until
// all its requests have ended.
#ifndef QUIRE_SERVE_DRIVER_H_
#define QUIRE_SERVE_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "serve/engine.h"
#include "serve/session_store.h"

namespace quire::serve {

/// What the engine's thread does besides, such as to look after what the engine stands on.
struct BetweenTicks {
  std::function<void()> call{};    // after each Tick; it changes no request and must not wait long
  uint64_t every_us = UINT64_MAX;  // at least so often, also while nothing is asked
};

/// Turns the engine until it ends: then all requests are cancelled, and callers that await them
/// hear so. Callers use the engine itself: Submit, Await and the like.
///
/// Lifetime: the engine must outlive it, and has no other driver meanwhile
class Driver {
 public:
  explicit Driver(Engine& engine, BetweenTicks between = {});
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// The engine's, as they were after its last Tick.
  ///
  /// Threads: any
  EngineStats stats() const;
  /// The engine's, as they are after its next Tick, for which it waits.
  ///
  /// Threads: any
  std::vector<SequenceEntry> Sequences();

 private:
  void Turn();
  void TellSequences();

  Engine& engine_;
  const BetweenTicks between_;
  std::atomic<bool> ending_ = false;
  mutable Mutex mutex_{LockRank::kLeaf};
  CondVar told_;
  EngineStats stats_ QUIRE_GUARDED_BY(mutex_);
  std::vector<SequenceEntry> sequences_ QUIRE_GUARDED_BY(mutex_);
  uint64_t asked_ QUIRE_GUARDED_BY(mutex_) = 0;     // calls of Sequences
  uint64_t answered_ QUIRE_GUARDED_BY(mutex_) = 0;  // of these
  std::thread thread_;
};

/// What request `index` says, but its Response, between the steps; false cancels it.
using OnEvent = std::function<bool(size_t index, const Event& event)>;

/// Submits the requests, turns the engine until all have ended, and returns their answers in their
/// order. What Submit refuses has a Response that says so. The engine must have no other driver.
/// A prompt is held once from then on, by the engine: it may be long.
std::vector<Response> RunAll(Engine& engine, std::vector<Request> requests,
                             const OnEvent& on_event = {});

// For callers that wait until a session's change outlives the process.

struct Settling {
  OnSettled settled;                  // for the engine
  std::future<Result<void>> outcome;  // get() waits; another thread must turn the engine meanwhile
};

inline Settling MakeSettling() {
  std::promise<Result<void>> promise;
  auto outcome = promise.get_future();
  return {.settled = [promise = std::move(promise)](
                         Result<void> settled) mutable { promise.set_value(std::move(settled)); },
          .outcome = std::move(outcome)};
}

}  // namespace quire::serve

#endif  // QUIRE_SERVE_DRIVER_H_

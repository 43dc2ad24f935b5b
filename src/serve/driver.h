// The thread that turns an engine in production.
#ifndef QUIRE_SERVE_DRIVER_H_
#define QUIRE_SERVE_DRIVER_H_

#include <atomic>
#include <thread>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "serve/engine.h"

namespace quire::serve {

/// Turns the engine until it ends: then all requests are cancelled, and those who await them hear
/// so. Callers use the engine itself: Submit, Await and the like.
///
/// Lifetime: the engine must outlive it, and has no other driver meanwhile
class Driver {
 public:
  explicit Driver(Engine& engine);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// The engine's, as they were after its last Tick.
  ///
  /// Threads: any
  EngineStats stats() const;

 private:
  void Turn();

  Engine& engine_;
  std::atomic<bool> ending_ = false;
  mutable Mutex mutex_{LockRank::kLeaf};
  EngineStats stats_ QUIRE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_DRIVER_H_

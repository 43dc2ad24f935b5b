// From the thread that turns the engine to whoever waits for one request's events.
#ifndef QUIRE_SERVE_HTTP_EVENT_HUB_H_
#define QUIRE_SERVE_HTTP_EVENT_HUB_H_

#include <functional>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "serve/request.h"

namespace quire::serve::http {

/// Notify is to be the engine's on_event. A listener is called on the engine's thread, with the
/// hub's lock held, so that it is never called again once Unlisten has returned: it hands over to
/// its own thread and returns.
///
/// Threads:  any
/// Lifetime: must outlive the engine
class EventHub {
 public:
  using Listener = std::function<void()>;

  /// Events of before are not told of: look once after this call.
  void Listen(RequestId id, Listener listener) {
    MutexLock lock(mutex_);
    listeners_[id] = std::move(listener);
  }
  void Unlisten(RequestId id) {
    MutexLock lock(mutex_);
    listeners_.erase(id);
  }
  void Notify(RequestId id) {
    MutexLock lock(mutex_);
    if (const auto found = listeners_.find(id); found != listeners_.end()) found->second();
  }

 private:
  Mutex mutex_{LockRank::kLeaf};
  std::map<RequestId, Listener> listeners_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_EVENT_HUB_H_

// Named moments between two holds of a lock, where a test can let something else happen.
#ifndef QUIRE_BASE_SYNC_POINT_H_
#define QUIRE_BASE_SYNC_POINT_H_

#include <atomic>
#include <functional>
#include <string_view>

namespace quire {

namespace internal {
extern std::atomic<bool> sync_point_handled;
void ReachSyncPoint(const char* name);
}  // namespace internal

/// Code that lets go of a lock and takes it again has to look again at what it saw before. It says
/// here that it is between the two holds, so that a test can change what it saw.
///
/// Not for paths that run at every decode step: a test can only use a few points, and their names
/// are read as documentation.
///
/// Threads: any; no lock may be held that the handler of a test may want
/// Cost:    one relaxed load, unless a test listens
inline void AtSyncPoint(const char* name) {
  if (internal::sync_point_handled.load(std::memory_order_relaxed)) [[unlikely]] {
    internal::ReachSyncPoint(name);
  }
}

/// While it lives, `handle` runs at every point, on the thread that gets there, before that goes
/// on. What `handle` itself does reaches no points. For tests: one at a time.
///
/// Threads:  made and destroyed while no other thread is at a point; `handle` may run on several
///           threads at once
/// Lifetime: what `handle` refers to must outlive it
class SyncPointHandler {
 public:
  using Handle = std::function<void(std::string_view name)>;

  explicit SyncPointHandler(Handle handle);
  ~SyncPointHandler();
  SyncPointHandler(const SyncPointHandler&) = delete;
  SyncPointHandler& operator=(const SyncPointHandler&) = delete;
};

}  // namespace quire

#endif  // QUIRE_BASE_SYNC_POINT_H_

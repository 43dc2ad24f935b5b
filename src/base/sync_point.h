// Named moments between two holds of a lock, where a test can let something else happen.
#ifndef QUIRE_BASE_SYNC_POINT_H_
#define QUIRE_BASE_SYNC_POINT_H_

#include <atomic>
#include <functional>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace quire {

namespace internal {

inline std::atomic<bool> sync_point_handled = false;
inline thread_local bool is_handling_sync_point = false;

// Written only while no thread is at a point. Never destroyed: a thread may outlive main.
inline std::function<void(std::string_view name)>& SyncPointHandle() {
  static auto* const handle = new std::function<void(std::string_view name)>();
  return *handle;
}

inline void ReachSyncPoint(const char* name) {
  // Pairs with the store in the constructor of the handler.
  if (is_handling_sync_point || !sync_point_handled.load(std::memory_order_acquire)) return;
  is_handling_sync_point = true;
  SyncPointHandle()(name);
  is_handling_sync_point = false;
}

}  // namespace internal

/// Code that releases a lock and takes it again must check again what it saw before. It calls this
/// between the two holds, so that a test can change that state.
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

/// While it lives, `handle` runs at every point, on the thread that reaches the point, before that
/// thread continues. Points that `handle` itself reaches are ignored. For tests: one at a time.
///
/// Threads:  made and destroyed while no other thread is at a point; `handle` may run on several
///           threads at once
/// Lifetime: what `handle` refers to must outlive it
class SyncPointHandler {
 public:
  using Handle = std::function<void(std::string_view name)>;

  explicit SyncPointHandler(Handle handle) {
    QUIRE_CHECK_MSG(!internal::sync_point_handled.load(std::memory_order_relaxed),
                    "one handler of sync points at a time");
    internal::SyncPointHandle() = std::move(handle);
    internal::sync_point_handled.store(true, std::memory_order_release);
  }
  ~SyncPointHandler() {
    internal::sync_point_handled.store(false, std::memory_order_relaxed);
    internal::SyncPointHandle() = nullptr;
  }
  SyncPointHandler(const SyncPointHandler&) = delete;
  SyncPointHandler& operator=(const SyncPointHandler&) = delete;
};

}  // namespace quire

#endif  // QUIRE_BASE_SYNC_POINT_H_

#include "base/sync_point.h"

#include <utility>

#include "base/check.h"

namespace quire {
namespace {

// Written only while no thread is at a point. Never destroyed: a thread may outlive main.
SyncPointHandler::Handle& TheHandle() {
  static auto* const handle = new SyncPointHandler::Handle();
  return *handle;
}

thread_local bool is_handling = false;

}  // namespace

namespace internal {

std::atomic<bool> sync_point_handled = false;

void ReachSyncPoint(const char* name) {
  // Pairs with the store of the handler's making.
  if (is_handling || !sync_point_handled.load(std::memory_order_acquire)) return;
  is_handling = true;
  TheHandle()(name);
  is_handling = false;
}

}  // namespace internal

SyncPointHandler::SyncPointHandler(Handle handle) {
  QUIRE_CHECK_MSG(!internal::sync_point_handled.load(std::memory_order_relaxed),
                  "one handler of sync points at a time");
  TheHandle() = std::move(handle);
  internal::sync_point_handled.store(true, std::memory_order_release);
}

SyncPointHandler::~SyncPointHandler() {
  internal::sync_point_handled.store(false, std::memory_order_relaxed);
  TheHandle() = nullptr;
}

}  // namespace quire

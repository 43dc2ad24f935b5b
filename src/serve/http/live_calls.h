// Calls under way: how far each one is, for the page and the operator.
#ifndef QUIRE_SERVE_HTTP_LIVE_CALLS_H_
#define QUIRE_SERVE_HTTP_LIVE_CALLS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "serve/http/caller.h"

namespace quire::serve::http {

/// Of all answers of a call together.
struct CallProgress {
  Caller caller{};
  std::string id{};
  uint64_t started_us = 0;
  std::atomic<uint64_t> prompt_tokens = 0;
  std::atomic<uint64_t> prompt_done = 0;  // in the cache so far
  std::atomic<uint64_t> generated = 0;
};

/// Threads: any
class LiveCalls {
 public:
  /// Enters a call; null: the tenant has `most` under way.
  std::shared_ptr<CallProgress> Enter(Caller caller, std::string id, uint64_t now_us,
                                      uint64_t most) {
    auto call = std::make_shared<CallProgress>();
    call->caller = std::move(caller);
    call->id = std::move(id);
    call->started_us = now_us;
    MutexLock lock(mutex_);
    const auto of_tenant = std::ranges::count_if(
        calls_, [&](const auto& each) { return each->caller.tenant == call->caller.tenant; });
    if (static_cast<uint64_t>(of_tenant) >= most) return nullptr;
    calls_.push_back(call);
    return call;
  }
  void Leave(const std::shared_ptr<CallProgress>& call) {
    MutexLock lock(mutex_);
    std::erase(calls_, call);
  }
  std::vector<std::shared_ptr<const CallProgress>> All() const {
    MutexLock lock(mutex_);
    return {calls_.begin(), calls_.end()};
  }

 private:
  mutable Mutex mutex_{LockRank::kLeaf};
  std::vector<std::shared_ptr<CallProgress>> calls_ QUIRE_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_LIVE_CALLS_H_

// What bodies of requests take of memory while they are read and looked at, all together.
#ifndef QUIRE_SERVE_HTTP_BODIES_H_
#define QUIRE_SERVE_HTTP_BODIES_H_

#include <atomic>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "quire/identity.h"

namespace quire::serve::http {

/// A tenant takes at most as much as it leaves free, so no tenant keeps another one's bodies away
/// by sending its own slowly. Its only body may take all that is free.
///
/// Threads: any
class BodyBudget {
 public:
  /// `used_bytes` is changed by this object alone, and must outlive it.
  BodyBudget(std::atomic<uint64_t>& used_bytes, uint64_t bytes_max)
      : used_bytes_(used_bytes), bytes_max_(bytes_max) {}

  /// More for a body of the tenant that has `taken_bytes` already.
  [[nodiscard]] bool TryTake(TenantId tenant, uint64_t taken_bytes, uint64_t bytes) {
    MutexLock lock(mutex_);
    const uint64_t free = bytes_max_ - used_bytes_;
    if (bytes > free) return false;
    const auto found = of_tenant_.find(tenant);
    const uint64_t had = found == of_tenant_.end() ? 0 : found->second;
    if (had != taken_bytes && had + bytes > free - bytes) return false;
    of_tenant_[tenant] = had + bytes;
    used_bytes_ += bytes;
    return true;
  }
  void Give(TenantId tenant, uint64_t bytes) {
    if (bytes == 0) return;
    MutexLock lock(mutex_);
    const auto found = of_tenant_.find(tenant);
    found->second -= bytes;
    if (found->second == 0) of_tenant_.erase(found);
    used_bytes_ -= bytes;
  }

 private:
  Mutex mutex_{LockRank::kLeaf};
  std::atomic<uint64_t>& used_bytes_;
  const uint64_t bytes_max_;
  std::map<TenantId, uint64_t> of_tenant_ QUIRE_GUARDED_BY(mutex_);  // above 0
};

/// What one request has of it.
///
/// Threads: one at a time
class BodyCharge {
 public:
  /// These are every request's own, so that others' large bodies keep no small one away. The number
  /// of connections bounds them.
  static constexpr uint64_t kFreeBytes = 16 << 10;

  BodyCharge(BodyBudget& budget, TenantId tenant) : budget_(budget), tenant_(tenant) {}
  ~BodyCharge() { Release(); }
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;

  /// The body has so many bytes, or is going to. False: there is no room, and nothing was taken.
  [[nodiscard]] bool GrowTo(uint64_t bytes) {
    if (bytes <= kFreeBytes + taken_) return true;
    const uint64_t more = bytes - kFreeBytes - taken_;
    if (!budget_.TryTake(tenant_, taken_, more)) return false;
    taken_ += more;
    return true;
  }
  void Release() {
    budget_.Give(tenant_, taken_);
    taken_ = 0;
  }

 private:
  BodyBudget& budget_;
  const TenantId tenant_;
  uint64_t taken_ = 0;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_BODIES_H_

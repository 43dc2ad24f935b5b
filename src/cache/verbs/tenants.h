// Tenants and domains: their names, their keys, and erasing them.
#ifndef QUIRE_CACHE_VERBS_TENANTS_H_
#define QUIRE_CACHE_VERBS_TENANTS_H_

#include <cstdint>
#include <string_view>

#include "cache/state/locked_state.h"
#include "quire/cache.h"
#include "tier/record.h"

namespace quire::cache {

/// The name under which the store knows a tenant: the account that pays for it.
tier::PublisherId PublisherOf(const LockedState& cache, TenantId tenant);
/// Checks a request, and returns the location where its blocks are published. `what` names the call
/// in messages.
/// Errors: kInvalidArgument; kNotFound there is no such tenant
Result<PublishLocation> Locate(const LockedState& cache, const AcquireRequest& request,
                               std::string_view what);

/// Threads: any
class Tenants {
 public:
  explicit Tenants(LockedState& cache) : cache_(cache) {}

  /// As Cache.
  Result<TenantId> Add(const TenantOptions& options);
  Result<TenantId> Find(std::string_view name) const;
  Result<TenantStats> stats(TenantId id) const;
  Result<EraseReport> Erase(TenantId id);
  Result<void> Remove(TenantId id);
  Result<void> SetLimits(TenantId id, uint64_t quota_bytes, uint64_t floor_bytes);

 private:
  uint64_t Disown(TenantId erased);
  void WriteAgain(TenantId erased);
  uint64_t MarkErased();
  uint64_t ZeroFreeSlots(TenantId tenant);

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_TENANTS_H_

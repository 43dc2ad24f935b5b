// The cache of rank 0, where it differs from that of one process in either mode.
#ifndef QUIRE_RANKS_GROUP_CACHE_H_
#define QUIRE_RANKS_GROUP_CACHE_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "quire/cache.h"
#include "ranks/tenant_change.h"
#include "registry/forwarding_cache.h"

namespace quire::ranks {

/// Tenants are those of all ranks: each has them in its own cache, where their quotas and floors
/// count, which are bytes of one rank, as hot_bytes is. A plan is opened before the next Acquire or
/// change of a tenant, or never. Statistics, Entries, Evict, Trim, Resize and Verify are those of
/// this rank alone. kUnsupported: pins, Load, Prefetch and Demote.
///
/// Threads:  one at a time, but for the calls of this rank alone, which are those of its cache
/// Lifetime: `own` must outlive it
class GroupCache : public registry::ForwardingCache {
 public:
  /// `mode`: of --ranks.
  GroupCache(Cache& own, std::string_view mode) : ForwardingCache(own), mode_(mode) {}

  /// On all ranks. Errors: as Cache; where another rank alone refuses, the group has failed
  Result<TenantId> AddTenant(const TenantOptions& options) override;
  /// On all ranks at the same time, whatever fails on one of them. The report is rank 0's.
  Result<EraseReport> Erase(TenantId tenant) override;
  /// Errors: as Cache, of any rank; after kBusy it is erased, and some ranks have it no more: call
  ///         it again
  Result<void> RemoveTenant(TenantId tenant) override;
  /// On all ranks or on none. Errors: as Cache, of any rank
  Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) override;

  Result<uint64_t> Pin(const AcquireRequest&, uint64_t) override { return Refuse("pin"); }
  Result<void> Unpin(const AcquireRequest&) override { return Refuse("unpin"); }
  Result<Ticket> Load(Plan, const LoadOptions&) override { return Refuse("load"); }
  Result<uint64_t> Prefetch(const AcquireRequest&) override { return Refuse("prefetch"); }
  Result<uint64_t> Demote(const AcquireRequest&) override { return Refuse("demote"); }
  Result<std::unique_ptr<Opening>> BeginOpen(Plan, const SequenceOptions&) override {
    return Refuse("streamed sequences");
  }

 protected:
  /// Every other rank takes the change; `meanwhile` is what this one does.
  ///
  /// Errors: of the first that could not, which ends the group where a tenant was to be added;
  ///         those of the group
  virtual Result<void> TellOthers(
      const TenantChange& change, const std::function<void()>& meanwhile = [] {}) = 0;
  std::unexpected<Error> Refuse(std::string_view what) const;

 private:
  const std::string_view mode_;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_GROUP_CACHE_H_

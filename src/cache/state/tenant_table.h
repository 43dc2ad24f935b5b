// Which tenants there are: names, domains, options, erase epochs. Knows no bytes and no blocks.
#ifndef QUIRE_CACHE_STATE_TENANT_TABLE_H_
#define QUIRE_CACHE_STATE_TENANT_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cache/state/per_tenant.h"
#include "quire/cache.h"
#include "quire/identity.h"

namespace quire::cache {

/// The tenants of a cache. Ids are those of Add; 0 is the default tenant. What a tenant publishes
/// is paid for by its *account*: itself, or the domain it belongs to.
///
/// Threads: not synchronised; the caller holds its lock
class TenantTable {
 public:
  /// With the default tenant.
  TenantTable();

  /// Whether these options can be those of one more, as far as names and numbers of its own say.
  /// Errors: kInvalidArgument; kNotFound there is no such domain
  Result<void> CheckNew(const TenantOptions& options) const;
  /// The id that the next one gets.
  TenantId next() const { return tenants_.end(); }
  /// Adds one that CheckNew allows. One of a name that was there before begins with its epoch.
  /// std::bad_alloc: nothing changes.
  TenantId Add(const TenantOptions& options);
  Result<TenantId> Find(std::string_view name) const;
  /// Errors: kNotFound there is no such tenant
  Result<void> Check(TenantId tenant) const;
  /// Errors: as Cache::RemoveTenant, as far as names say
  Result<void> CheckRemovable(TenantId tenant) const;
  void Remove(TenantId tenant);
  void SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) {
    tenants_[tenant].options.quota_bytes = quota_bytes;
    tenants_[tenant].options.floor_bytes = floor_bytes;
  }

  /// How many there are.
  uint32_t count() const { return tenants_.count(); }
  /// Calls visit(tenant) for each by ascending id.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    tenants_.ForEach([&](TenantId id, const Tenant&) { visit(id); });
  }
  const TenantOptions& options(TenantId tenant) const { return tenants_[tenant].options; }
  /// Who pays for what a tenant publishes.
  TenantId account_of(TenantId tenant) const {
    return tenants_.contains(tenant) ? tenants_[tenant].account : tenant;
  }
  /// Of all of them.
  uint64_t floors_bytes() const;
  /// Raised by each erasure.
  uint32_t epoch(TenantId tenant) const { return tenants_[tenant].epoch; }
  void RaiseEpoch(TenantId tenant) { ++tenants_[tenant].epoch; }

 private:
  struct Tenant {
    TenantOptions options;
    TenantId account{};
    uint32_t epoch = 0;
  };

  PerTenant<Tenant> tenants_;
  std::map<std::string, uint32_t, std::less<>> removed_;  // epochs of those that were, by name
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_TENANT_TABLE_H_

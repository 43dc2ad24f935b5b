// The tenants that exist: names, domains, options, erase epochs. Knows no bytes and no blocks.
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

/// The tenants of a cache. Ids are those of Add; 0 is the default tenant. The *account* of a tenant
/// pays for what it publishes: itself, or its domain.
///
/// Threads: not synchronised; the caller holds its lock
class TenantTable {
 public:
  /// With the default tenant.
  TenantTable();

  /// Whether a tenant with these options can be added, as far as names and its own numbers say.
  /// Errors: kInvalidArgument; kNotFound there is no such domain
  Result<void> CheckNew(const TenantOptions& options) const;
  /// The id of the next tenant.
  TenantId next() const { return tenants_.end(); }
  /// Adds a tenant that CheckNew allows. With the name of a removed tenant it begins with that
  /// one's epoch. std::bad_alloc: nothing changes.
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

  /// How many tenants exist.
  uint32_t count() const { return tenants_.count(); }
  /// Calls visit(tenant) for each, by ascending id.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    tenants_.ForEach([&](TenantId id, const Tenant&) { visit(id); });
  }
  const TenantOptions& options(TenantId tenant) const { return tenants_[tenant].options; }
  /// The account that pays for what a tenant publishes.
  TenantId account_of(TenantId tenant) const {
    return tenants_.contains(tenant) ? tenants_[tenant].account : tenant;
  }
  /// The sum of all floors.
  uint64_t floors_bytes() const;
  /// Counts the tenant's erasures.
  uint32_t epoch(TenantId tenant) const { return tenants_[tenant].epoch; }
  void RaiseEpoch(TenantId tenant) { ++tenants_[tenant].epoch; }

 private:
  struct Tenant {
    TenantOptions options;
    TenantId account{};
    uint32_t epoch = 0;
  };

  PerTenant<Tenant> tenants_;
  std::map<std::string, uint32_t, std::less<>> removed_;  // epochs of removed tenants, by name
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_TENANT_TABLE_H_

#include "ranks/group_cache.h"

#include <fmt/format.h>

namespace quire::ranks {

std::unexpected<Error> GroupCache::Refuse(std::string_view what) const {
  return Fail(ErrorCode::kUnsupported,
              fmt::format("{}: not possible with --ranks {}; run without --ranks", what, mode_));
}

// To remove it again where another rank refused would erase what stores have of it.
Result<TenantId> GroupCache::AddTenant(const TenantOptions& options) {
  QUIRE_ASSIGN(const TenantId id, inner().AddTenant(options));
  QUIRE_TRY(TellOthers({.kind = TenantChange::Kind::kAdd, .tenant = id, .options = options}));
  return id;
}

Result<EraseReport> GroupCache::Erase(TenantId tenant) {
  auto erased = inner().Erase(tenant);
  if (!erased && erased.error().code == ErrorCode::kNotFound) return erased;
  const auto told = TellOthers({.kind = TenantChange::Kind::kErase, .tenant = tenant});
  if (!told && erased) return std::unexpected(told.error());
  return erased;
}

Result<void> GroupCache::RemoveTenant(TenantId tenant) {
  if (tenant == kDefaultTenant) return inner().RemoveTenant(tenant);
  QUIRE_TRY(inner().tenant_stats(tenant));
  QUIRE_TRY(TellOthers({.kind = TenantChange::Kind::kRemove, .tenant = tenant}));
  return inner().RemoveTenant(tenant);
}

Result<void> GroupCache::SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) {
  const auto change_to = [tenant](uint64_t quota, uint64_t floor) {
    return TenantChange{.kind = TenantChange::Kind::kLimits,
                        .tenant = tenant,
                        .options = {.quota_bytes = quota, .floor_bytes = floor}};
  };
  QUIRE_ASSIGN(const TenantStats before, inner().tenant_stats(tenant));
  QUIRE_TRY(inner().SetLimits(tenant, quota_bytes, floor_bytes));
  if (auto told = TellOthers(change_to(quota_bytes, floor_bytes)); !told) {
    static_cast<void>(inner().SetLimits(tenant, before.quota_bytes, before.floor_bytes));
    static_cast<void>(TellOthers(change_to(before.quota_bytes, before.floor_bytes)));
    return told;
  }
  return {};
}

}  // namespace quire::ranks

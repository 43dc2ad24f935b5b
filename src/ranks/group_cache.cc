#include "ranks/group_cache.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

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
  QUIRE_TRY(inner().tenant_stats(tenant));
  std::optional<Result<EraseReport>> erased;
  const auto told = TellOthers({.kind = TenantChange::Kind::kErase, .tenant = tenant},
                               [&] { erased = inner().Erase(tenant); });
  if (!erased) erased = inner().Erase(tenant);  // the group has failed before
  if (!told && *erased) return std::unexpected(told.error());
  return *std::move(erased);
}

// Others first: what rank 0 has removed it could not name to them again.
Result<void> GroupCache::RemoveTenant(TenantId tenant) {
  if (tenant == kDefaultTenant) return inner().RemoveTenant(tenant);
  QUIRE_TRY(inner().tenant_stats(tenant));
  if (auto told = TellOthers({.kind = TenantChange::Kind::kRemove, .tenant = tenant}); !told) {
    static_cast<void>(inner().Erase(tenant));
    return told;
  }
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

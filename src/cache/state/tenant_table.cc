#include "cache/state/tenant_table.h"

#include <fmt/format.h>

#include <optional>

namespace quire::cache {
namespace {

std::unexpected<Error> Refuse(const TenantOptions& options, std::string_view what) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("tenant \"{}\": {}", options.name, what));
}

}  // namespace

TenantTable::TenantTable()
    : tenants_(std::make_shared<Tenant>(Tenant{
          .options = {.name = "(removed)"}, .account = kDefaultTenant, .epoch = UINT32_MAX})) {
  tenants_.Put(kDefaultTenant, std::make_shared<Tenant>(Tenant{.options = {.name = "default"},
                                                               .account = kDefaultTenant}));
}

Result<void> TenantTable::CheckNew(const TenantOptions& options) const {
  if (options.name.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "tenant: the name is empty");
  }
  if (options.shared && !options.domain.empty()) return Refuse(options, "a domain names a domain");
  if (options.quota_bytes != 0 && options.floor_bytes > options.quota_bytes) {
    return Refuse(options, fmt::format("a floor of {} bytes is above its quota of {}",
                                       options.floor_bytes, options.quota_bytes));
  }
  if (options.store_quota_bytes != 0 && options.store_floor_bytes > options.store_quota_bytes) {
    return Refuse(options, fmt::format("a store_floor of {} bytes is above its store_quota of {}",
                                       options.store_floor_bytes, options.store_quota_bytes));
  }
  if (Find(options.name)) return Refuse(options, "the name is taken");
  if (options.domain.empty()) return {};
  const auto domain = Find(options.domain);
  if (domain && this->options(*domain).shared) return {};
  return Fail(ErrorCode::kNotFound, fmt::format("tenant \"{}\": there is no domain \"{}\"",
                                                options.name, options.domain));
}

TenantId TenantTable::Add(const TenantOptions& options) {
  const TenantId id = next();
  const auto domain = options.domain.empty() ? std::nullopt : std::optional(Find(options.domain));
  auto tenant =
      std::make_shared<Tenant>(Tenant{.options = options, .account = domain ? **domain : id});
  if (const auto before = removed_.find(options.name); before != removed_.end()) {
    tenant->epoch = before->second;
  }
  tenants_.Put(id, std::move(tenant));
  return id;
}

Result<TenantId> TenantTable::Find(std::string_view name) const {
  for (uint32_t i = 0; i < next().number(); ++i) {
    const TenantId id(i);
    if (tenants_.contains(id) && options(id).name == name) return id;
  }
  return Fail(ErrorCode::kNotFound, fmt::format("there is no tenant \"{}\"", name));
}

Result<void> TenantTable::Check(TenantId tenant) const {
  if (tenants_.contains(tenant)) return {};
  return Fail(ErrorCode::kNotFound, fmt::format("there is no tenant {}", tenant.number()));
}

Result<void> TenantTable::CheckRemovable(TenantId id) const {
  if (id == kDefaultTenant) {
    return Fail(ErrorCode::kInvalidArgument, "tenant \"default\" cannot be removed");
  }
  uint64_t members = 0;
  ForEach([&](TenantId other) { members += other != id && account_of(other) == id ? 1 : 0; });
  if (members == 0) return {};
  return Fail(ErrorCode::kBusy,
              fmt::format("tenant \"{}\": {} tenants publish to it; remove them first",
                          options(id).name, members));
}

void TenantTable::Remove(TenantId id) {
  const Tenant& tenant = tenants_[id];
  removed_[tenant.options.name] = tenant.epoch + 1;
  tenants_.Remove(id);
}

uint64_t TenantTable::floors_bytes() const {
  uint64_t bytes = 0;
  ForEach([&](TenantId tenant) { bytes += options(tenant).floor_bytes; });
  return bytes;
}

}  // namespace quire::cache

#include "ranks/tenant_change.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <type_traits>

namespace quire::ranks {
namespace {

// Name and domain come behind it.
struct TenantHeader {
  uint8_t kind = 0;
  uint8_t shared = 0;
  std::array<uint8_t, 2> reserved{};
  uint32_t tenant = 0;
  uint64_t quota_bytes = 0;
  uint64_t floor_bytes = 0;
  uint64_t ttl_us = 0;
  uint64_t store_quota_bytes = 0;
  uint64_t store_floor_bytes = 0;
  uint64_t name_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<TenantHeader>);

}  // namespace

std::string Write(const TenantChange& change) {
  const TenantOptions& options = change.options;
  const TenantHeader header = {.kind = static_cast<uint8_t>(change.kind),
                               .shared = options.shared,
                               .tenant = change.tenant.number(),
                               .quota_bytes = options.quota_bytes,
                               .floor_bytes = options.floor_bytes,
                               .ttl_us = options.ttl_us,
                               .store_quota_bytes = options.store_quota_bytes,
                               .store_floor_bytes = options.store_floor_bytes,
                               .name_bytes = options.name.size()};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  return bytes + options.name + options.domain;
}

Result<TenantChange> ReadTenantChange(std::string_view bytes) {
  TenantHeader header;
  const bool whole = bytes.size() >= sizeof(header);
  if (whole) std::memcpy(&header, bytes.data(), sizeof(header));
  using Kind = TenantChange::Kind;
  if (!whole || header.name_bytes > bytes.size() - sizeof(header) ||
      header.kind < static_cast<uint8_t>(Kind::kAdd) ||
      header.kind > static_cast<uint8_t>(Kind::kLimits)) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("ranks: {} bytes from rank 0 are no change of a tenant", bytes.size()));
  }
  bytes.remove_prefix(sizeof(header));
  return TenantChange{.kind = static_cast<Kind>(header.kind),
                      .tenant = TenantId(header.tenant),
                      .options = {.name = std::string(bytes.substr(0, header.name_bytes)),
                                  .quota_bytes = header.quota_bytes,
                                  .floor_bytes = header.floor_bytes,
                                  .domain = std::string(bytes.substr(header.name_bytes)),
                                  .shared = header.shared != 0,
                                  .ttl_us = header.ttl_us,
                                  .store_quota_bytes = header.store_quota_bytes,
                                  .store_floor_bytes = header.store_floor_bytes}};
}

Result<TenantId> FollowedTenants::Find(TenantId of_rank_0) const {
  const auto found = own_.find(of_rank_0);
  if (found != own_.end()) return found->second;
  return Fail(ErrorCode::kNotFound,
              fmt::format("ranks: there is no tenant {}", of_rank_0.number()));
}

Result<void> FollowedTenants::Take(const TenantChange& change) {
  using Kind = TenantChange::Kind;
  if (change.kind == Kind::kAdd) {
    QUIRE_ASSIGN(const TenantId own, cache_.AddTenant(change.options));
    own_[change.tenant] = own;
    return {};
  }
  const auto own = Find(change.tenant);
  if (change.kind == Kind::kRemove) {
    if (!own) return {};
    QUIRE_TRY(cache_.RemoveTenant(*own));
    own_.erase(change.tenant);
    return {};
  }
  QUIRE_TRY(own);
  if (change.kind == Kind::kLimits) {
    return cache_.SetLimits(*own, change.options.quota_bytes, change.options.floor_bytes);
  }
  QUIRE_TRY(cache_.Erase(*own));
  return {};
}

}  // namespace quire::ranks

// Naive tenants, shared by the tests of the table of tenants and of the accounts.
#ifndef QUIRE_CACHE_STATE_NAIVE_TENANTS_H_
#define QUIRE_CACHE_STATE_NAIVE_TENANTS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "quire/cache.h"

namespace quire::cache {

/// All tenants that ever existed, by id; the first is the default one.
class NaiveTenants {
 public:
  struct Tenant {
    TenantOptions options{};
    TenantId account{};
    uint32_t epoch = 0;
    bool is_there = true;
  };

  NaiveTenants() : all_{{.options = {.name = "default"}, .account = kDefaultTenant}} {}

  uint32_t count() const { return static_cast<uint32_t>(all_.size()); }
  TenantId next() const { return TenantId(count()); }
  Tenant& At(TenantId tenant) { return all_[tenant.number()]; }
  const Tenant& At(TenantId tenant) const { return all_[tenant.number()]; }
  TenantId Any(Prng& prng) const {
    return TenantId(static_cast<uint32_t>(prng.NextBelow(count())));
  }
  uint64_t FloorsBytes() const {
    uint64_t bytes = 0;
    for (const Tenant& tenant : all_) {
      if (tenant.is_there) bytes += tenant.options.floor_bytes;
    }
    return bytes;
  }

  /// Options that may be wrong. A name of `names`, or none; quota and floor in units of `bytes`.
  static TenantOptions AnyOptions(Prng& prng, uint64_t names, uint64_t bytes) {
    TenantOptions options;
    const uint64_t name = prng.NextBelow(names + 1);
    if (name > 0) options.name = "t" + std::to_string(name);
    if (prng.NextChance(2)) options.quota_bytes = (1 + prng.NextBelow(12)) * bytes;
    if (prng.NextChance(2)) options.floor_bytes = prng.NextBelow(8) * bytes;
    if (prng.NextChance(3)) options.domain = "t" + std::to_string(1 + prng.NextBelow(names));
    options.shared = prng.NextChance(3);
    return options;
  }
  /// The error of adding such a tenant; none: it can be added.
  ErrorCode ErrorOf(const TenantOptions& options) const {
    if (options.name.empty() || (options.shared && !options.domain.empty()) ||
        (options.quota_bytes > 0 && options.floor_bytes > options.quota_bytes) ||
        !Named(options.name).is_none()) {
      return ErrorCode::kInvalidArgument;
    }
    const TenantId domain = Named(options.domain);
    if (!options.domain.empty() && (domain.is_none() || !At(domain).options.shared)) {
      return ErrorCode::kNotFound;
    }
    return {};
  }
  void Add(const TenantOptions& options, uint32_t epoch = 0) {
    const TenantId account = options.domain.empty() ? next() : Named(options.domain);
    all_.push_back({.options = options, .account = account, .epoch = epoch});
  }
  /// Whether other tenants use its domain.
  bool HasMembers(TenantId tenant) const {
    for (uint32_t i = 0; i < count(); ++i) {
      if (all_[i].is_there && TenantId(i) != tenant && all_[i].account == tenant) return true;
    }
    return false;
  }

 private:
  TenantId Named(std::string_view name) const {
    const auto found = std::ranges::find_if(
        all_, [&](const Tenant& tenant) { return tenant.is_there && tenant.options.name == name; });
    return found == all_.end() ? TenantId::None()
                               : TenantId(static_cast<uint32_t>(found - all_.begin()));
  }

  std::vector<Tenant> all_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_NAIVE_TENANTS_H_

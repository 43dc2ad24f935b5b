// A value for each tenant, by id.
#ifndef QUIRE_CACHE_STATE_PER_TENANT_H_
#define QUIRE_CACHE_STATE_PER_TENANT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "quire/identity.h"

namespace quire::cache {

/// A T for each tenant. All removed tenants share one T without capacity: a late call with such an
/// id is refused for lack of room.
///
/// Errors:  std::bad_alloc from Put: nothing changes
/// Threads: not synchronised; the caller holds its lock
template <typename T>
class PerTenant {
 public:
  explicit PerTenant(std::shared_ptr<T> gone) : gone_(std::move(gone)) {}

  /// For an id of a present or removed tenant.
  T& operator[](TenantId tenant) { return *all_[tenant.number()]; }
  const T& operator[](TenantId tenant) const { return *all_[tenant.number()]; }
  /// The value of all removed tenants.
  const T& gone() const { return *gone_; }
  /// Whether the tenant exists.
  bool contains(TenantId tenant) const {
    return tenant.number() < all_.size() && all_[tenant.number()] != gone_;
  }
  /// How many tenants exist.
  uint32_t count() const { return count_; }
  /// The lowest id that was never given.
  TenantId end() const { return TenantId(static_cast<uint32_t>(all_.size())); }

  /// Replaces the value of an id, if a failed attempt to add a tenant left one.
  void Put(TenantId tenant, std::shared_ptr<T> value) {
    if (tenant.number() >= all_.size()) all_.resize(tenant.number() + 1, gone_);
    if (!contains(tenant)) ++count_;
    all_[tenant.number()] = std::move(value);
  }
  void Remove(TenantId tenant) {
    all_[tenant.number()] = gone_;
    --count_;
  }
  /// Calls visit(id, value) for each tenant, by ascending id.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t i = 0; i < all_.size(); ++i) {
      if (all_[i] != gone_) visit(TenantId(i), *all_[i]);
    }
  }

 private:
  std::vector<std::shared_ptr<T>> all_;  // by TenantId
  std::shared_ptr<T> gone_;
  uint32_t count_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_PER_TENANT_H_

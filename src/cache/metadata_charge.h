// What sequences pay for their bookkeeping.
#ifndef QUIRE_CACHE_METADATA_CHARGE_H_
#define QUIRE_CACHE_METADATA_CHARGE_H_

#include <cstdint>
#include <utility>

#include "quire/identity.h"

namespace quire::cache {

class LockedState;

/// Bytes charged to the budget and to a tenant, given back at the end. Move-only.
///
/// Threads:  one at a time; its end takes the cache lock
/// Lifetime: the cache must outlive it
class MetadataCharge {
 public:
  MetadataCharge() = default;
  MetadataCharge(LockedState& cache, TenantId tenant, uint64_t bytes)
      : cache_(&cache), tenant_(tenant), bytes_(bytes) {}
  MetadataCharge(MetadataCharge&& other) noexcept
      : cache_(other.cache_), tenant_(other.tenant_), bytes_(std::exchange(other.bytes_, 0)) {}
  MetadataCharge& operator=(MetadataCharge&& other) noexcept;
  MetadataCharge(const MetadataCharge&) = delete;
  MetadataCharge& operator=(const MetadataCharge&) = delete;
  ~MetadataCharge() { Refund(); }

  uint64_t bytes() const { return bytes_; }
  /// Takes `bytes` out, at most all of them.
  MetadataCharge Split(uint64_t bytes);
  /// Joins one of the same cache and tenant.
  void Add(MetadataCharge more);

 private:
  void Refund();

  LockedState* cache_ = nullptr;
  TenantId tenant_{};
  uint64_t bytes_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_METADATA_CHARGE_H_

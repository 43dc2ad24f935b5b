// What rank 0 changes about tenants, as the other ranks hear of it.
#ifndef QUIRE_RANKS_TENANT_CHANGE_H_
#define QUIRE_RANKS_TENANT_CHANGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "quire/cache.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::ranks {

struct TenantChange {
  enum class Kind : uint8_t {
    kAdd = 1,     // with `options`
    kErase = 2,   // all that it published
    kRemove = 3,  // one that a rank does not have is removed already
    kLimits = 4,  // to `options.quota_bytes` and `options.floor_bytes`
  };
  Kind kind{};
  TenantId tenant{};  // in rank 0's cache
  TenantOptions options{};
};

/// The bytes of a change, for a process of the same build.
std::string Write(const TenantChange& change);
/// Errors: kCorrupt it is no change
Result<TenantChange> ReadTenantChange(std::string_view bytes);

/// The tenants of a rank that follows: rank 0's ids, and those of its own cache.
///
/// Threads:  one at a time
/// Lifetime: `cache` must outlive it
class FollowedTenants {
 public:
  explicit FollowedTenants(Cache& cache) : cache_(cache) {}

  /// Does to its own cache what rank 0 did. Errors: as the calls of Cache
  Result<void> Take(const TenantChange& change);
  /// Errors: kNotFound
  Result<TenantId> Find(TenantId of_rank_0) const;

 private:
  Cache& cache_;
  std::map<TenantId, TenantId> own_{{kDefaultTenant, kDefaultTenant}};  // by rank 0's
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_TENANT_CHANGE_H_

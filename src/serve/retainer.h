// What callers expect to ask again: hints, which bend what goes first and never lock others out.
#ifndef QUIRE_SERVE_RETAINER_H_
#define QUIRE_SERVE_RETAINER_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "quire/cache.h"
#include "serve/adapters.h"
#include "serve/request.h"

namespace quire::serve {

struct RetainLimits {
  uint64_t ttl_us_max = 3'600'000'000;  // longer hints are clipped to it
  double share = 0.25;  // of what a tenant may hold, that its pins may keep with those of hints
};

/// Threads:  one
/// Lifetime: cache and identity must outlive it
class Retainer {
 public:
  Retainer(Cache& cache, const Identity& identity, const RetainLimits& limits)
      : cache_(cache), identity_(identity), limits_(limits) {}

  /// What a member of a domain publishes is the domain's. None: it is the tenant's own.
  void SetDomain(TenantId tenant, TenantId domain);

  /// Keeps what the hints of a request ask for, of the tokens that it has computed so far: whole
  /// blocks, those at the front where not all may be kept. One outcome for each hint, in order.
  /// `adapter`:
  /// which computed them; null: the base model.
  std::vector<RetainOutcome> Apply(const Request& request, TenantId tenant,
                                   const ServedAdapter* adapter, std::span<const TokenId> computed);

 private:
  RetainOutcome ApplyOne(const RetainHint& hint, TenantId tenant, const Identity& identity,
                         std::span<const TokenId> computed);
  uint64_t BlocksTooMany(TenantId tenant) const;

  Cache& cache_;
  const Identity& identity_;
  const RetainLimits limits_;
  std::map<TenantId, TenantId> domains_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_RETAINER_H_

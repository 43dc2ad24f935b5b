// Which tenant goes first: the one that was served least.
#ifndef QUIRE_SERVE_FAIR_SHARE_H_
#define QUIRE_SERVE_FAIR_SHARE_H_

#include <cstdint>
#include <map>

#include "quire/identity.h"

namespace quire::serve {

/// Counts the tokens computed for each tenant, divided by its weight. Who has the least goes first,
/// so tenants that always want something get shares in proportion to their weights, and one that
/// wants less than its share gets all it wants. Being idle saves nothing up: whoever comes back
/// starts where the least served of the others is.
///
/// Source: Sheng et al., Fairness in Serving Large Language Models, arXiv 2401.00588
class FairShare {
 public:
  /// Above 0; tenants that were never named have 1.
  void SetWeight(TenantId tenant, double weight) { tenants_[tenant].weight = weight; }

  /// One more, or one fewer, request of the tenant is on its way.
  void Enter(TenantId tenant);
  void Leave(TenantId tenant);

  /// Tokens computed for it.
  void Charge(TenantId tenant, uint64_t tokens);
  /// Its count as it stands, and as it would be after `tokens` more.
  double served(TenantId tenant) const { return ServedAfter(tenant, 0); }
  double ServedAfter(TenantId tenant, uint64_t tokens) const;

 private:
  struct Tenant {
    double weight = 1;
    double served = 0;
    uint64_t requests = 0;
  };

  std::map<TenantId, Tenant> tenants_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_FAIR_SHARE_H_

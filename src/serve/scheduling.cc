#include "serve/scheduling.h"

#include <algorithm>
#include <limits>

namespace quire::serve {

void FairShare::Enter(TenantId tenant) {
  Tenant& entering = tenants_[tenant];
  if (entering.requests++ > 0) return;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [id, other] : tenants_) {
    if (id != tenant && other.requests > 0) least = std::min(least, other.served);
  }
  if (least < std::numeric_limits<double>::infinity()) {
    entering.served = std::max(entering.served, least);
  }
}

void FairShare::Leave(TenantId tenant) { --tenants_[tenant].requests; }

void FairShare::Charge(TenantId tenant, uint64_t tokens) {
  tenants_[tenant].served = ServedAfter(tenant, tokens);
}

double FairShare::ServedAfter(TenantId tenant, uint64_t tokens) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return static_cast<double>(tokens);
  return found->second.served + static_cast<double>(tokens) / found->second.weight;
}

}  // namespace quire::serve

// What a step computes: which tenant goes first, and how many tokens of a prompt.
#ifndef QUIRE_SERVE_SCHEDULING_H_
#define QUIRE_SERVE_SCHEDULING_H_

#include <algorithm>
#include <cstdint>
#include <map>

#include "quire/identity.h"

namespace quire::serve {

/// Counts the tokens computed for each tenant, divided by its weight. The one with the least goes
/// first, so tenants that always want something get shares in proportion to their weights, and one
/// that wants less than its share gets all it wants. Being idle saves nothing up: a tenant that
/// comes back starts where the least served of the others is.
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

/// Between two bounds, in factors of two. Starts at the lower one.
class ChunkSize {
 public:
  ChunkSize(uint32_t tokens_min, uint32_t tokens_max)
      : tokens_min_(tokens_min), tokens_max_(tokens_max), tokens_(tokens_min) {}

  uint32_t tokens() const { return tokens_; }

  /// After a chunk: `free_tokens` is what the cache could still take, evicting what is not held.
  /// A chunk doubles while four of its size would fit, and halves where two would not.
  void Adapt(uint64_t free_tokens) {
    if (free_tokens >= kGrowAt * uint64_t{tokens_}) {
      tokens_ = static_cast<uint32_t>(std::min<uint64_t>(2 * uint64_t{tokens_}, tokens_max_));
    } else if (free_tokens < kShrinkBelow * uint64_t{tokens_}) {
      Shrink();
    }
  }
  /// A chunk found no room.
  void Shrink() { tokens_ = std::max(tokens_ / 2, tokens_min_); }

 private:
  static constexpr uint64_t kGrowAt = 4;
  static constexpr uint64_t kShrinkBelow = 2;

  const uint32_t tokens_min_;
  const uint32_t tokens_max_;
  uint32_t tokens_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SCHEDULING_H_

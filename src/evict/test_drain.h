// What a policy's tests look at: in which order it lets blocks go.
#ifndef QUIRE_EVICT_TEST_DRAIN_H_
#define QUIRE_EVICT_TEST_DRAIN_H_

#include <cstdint>
#include <vector>

#include "evict/policy.h"

namespace quire::evict {

/// Evicts everything; the numbers of the blocks, first the one that went first.
inline std::vector<uint32_t> Drain(Policy& policy) {
  std::vector<uint32_t> order;
  while (const auto victim = policy.Victim()) {
    order.push_back(victim->number());
    policy.Evict(*victim);
  }
  return order;
}

}  // namespace quire::evict

#endif  // QUIRE_EVICT_TEST_DRAIN_H_

// Runs a function as every rank of a group, each on a thread.
#ifndef QUIRE_RANKS_TEST_RANKS_H_
#define QUIRE_RANKS_TEST_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "env/clock.h"
#include "quire/cache.h"
#include "ranks/group.h"
#include "ranks/local_transport.h"

namespace quire::ranks {

/// Returns when all have ended.
inline void RunRanks(uint32_t size, const Schedule& schedule,
                     const std::function<void(Group& group)>& rank,
                     const GroupOptions& options = {}) {
  LocalRanks ranks(size, SystemClock(), schedule);
  std::vector<std::unique_ptr<Transport>> ends;
  for (uint32_t i = 0; i < size; ++i) ends.push_back(ranks.Join(i));
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      Group group(*ends[i], SystemClock(), options);
      rank(group);
    });
  }
}

/// A tenant from its start to its end, through all changes. Errors: of the first call that fails
inline Result<void> ChangeTenant(Cache& cache) {
  QUIRE_ASSIGN(const TenantId tenant, cache.AddTenant({.name = "changed"}));
  QUIRE_TRY(cache.SetLimits(tenant, cache.options().hot_bytes / 2, 0));
  QUIRE_TRY(cache.Erase(tenant));
  return cache.RemoveTenant(tenant);
}

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_TEST_RANKS_H_

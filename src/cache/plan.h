// What is behind a plan.
#ifndef QUIRE_CACHE_PLAN_H_
#define QUIRE_CACHE_PLAN_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/lookup.h"
#include "cache/state.h"
#include "quire/cache.h"

namespace quire::cache {

/// A plan: the pinned path and what the prompt was.
struct PlanState {
  static PlanState& Of(const Plan& plan) { return *plan.state_; }
  static Plan Wrap(std::unique_ptr<PlanState> state) { return Plan(std::move(state)); }

  PublishLocation location;
  uint64_t prompt_tokens = 0;
  uint64_t resident = 0;                   // tokens found
  WipedVector<TokenId> resident_tokens{};  // [resident]
  std::vector<BlockId> path{};
  PerClass<std::vector<SlotId>> slots{};  // [resident / block_tokens]; none where no query looks
  Lease lease{};                          // on these slots
  std::vector<MissRun> missing{};         // never empty once acquired
  LoadList load{};                        // what the store has besides
  WipedVector<TokenId> prompt{};          // [prompt_tokens], where there is something to load
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_PLAN_H_

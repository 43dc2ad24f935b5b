// Plans, and the sequences that begin with them.
#ifndef QUIRE_CACHE_VERBS_ADMIT_H_
#define QUIRE_CACHE_VERBS_ADMIT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/below/arrival.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/verbs/lookup.h"
#include "quire/cache.h"

namespace quire::cache {

/// A plan: the pinned path, and facts about the prompt.
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
  float error_max = 0.0f;                 // as AcquireRequest::approximate_error_max
  uint64_t approximate_tokens = 0;        // of `resident`, those without a slot of the open form
  float approximate_error = 0.0f;         // the largest of theirs
  std::vector<MissRun> missing{};         // never empty once acquired
  LoadList load{};                        // the blocks that the store has besides
  std::optional<uint64_t> differs_at{};   // as Plan
  WipedVector<TokenId> prompt{};          // [prompt_tokens], where more than these are needed
  // Of a load by layer: the blocks behind `path` are not all there, and are the load's to publish.
  std::shared_ptr<const Arrival> arrival{};
};

/// Threads: any
class Admission {
 public:
  Admission(Search& search, const SequenceVerbs& verbs)
      : cache_(verbs.cache), search_(search), verbs_(verbs) {}

  /// As Cache.
  Result<Plan> Acquire(const AcquireRequest& request);
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options);
  Result<std::unique_ptr<Opening>> BeginOpen(Plan plan, const SequenceOptions& options);

  /// The purpose of a plan, and the blocks that a load before it could not bring.
  struct PlanFor {
    bool reuse = true;
    const SequenceOptions* open_as = nullptr;
    bool looks_below = true;
    const LoadList* failed = nullptr;
    MissReason failure = MissReason::kNeverSeen;  // of `failed`
  };
  /// Finds and leases the resident blocks of a prompt, and gives the reason why the others are
  /// missing.
  /// Errors: kNoSpace as Open would have, with open_as
  Result<void> FillPlan(PlanState& plan, std::span<const TokenId> prompt, const PlanFor& what);
  /// Counts a plan as a lookup, or (-1) removes it from the counts. `computed_tokens` of the
  /// resident tokens are no hit: the caller computed them after the lookup.
  void Count(const PlanState& plan, int64_t sign, uint64_t computed_tokens = 0);

 private:
  Result<void> CheckContiguous(uint64_t resident_tokens) const;
  Result<void> CheckLength(const PlanState& plan, const SequenceOptions& options) const;
  Result<void> CheckStreamFits(const PublishLocation& location, const StreamNeeds& needs,
                               uint64_t tokens, const SequenceOptions& options);
  uint64_t SequenceBytes(uint64_t shared, uint64_t blocks, const SequenceOptions& options) const;
  uint64_t BytesOfSequence(uint64_t shared, uint64_t blocks, const SequenceOptions& options) const;
  uint64_t FittingBlocks(const PlanState& plan, uint64_t blocks, const SequenceOptions& options);
  Result<void> CheckCapacityToOpen(const PublishLocation& location, uint64_t prompt_tokens,
                                   std::span<const BlockId> path, const SequenceOptions& options);

  LockedState& cache_;
  Search& search_;
  const SequenceVerbs& verbs_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_ADMIT_H_

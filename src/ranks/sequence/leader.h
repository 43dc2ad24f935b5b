// Rank 0 of a sequence-parallel group: an engine on it uses a cache and takes steps as ever, and
// all ranks do so.
#ifndef QUIRE_RANKS_SEQUENCE_LEADER_H_
#define QUIRE_RANKS_SEQUENCE_LEADER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "model/step_runner.h"
#include "quire/cache.h"
#include "ranks/group_cache.h"
#include "ranks/sequence/member.h"

namespace quire::ranks::sequence {

/// Acquire, Open, and what is done with a sequence, is told to all ranks first. Lengths are those
/// of whole texts. Acquire has loaded what stores have.
///
/// Threads:  as GroupCache
/// Lifetime: `member` must outlive it, and it must outlive its sequences
class LeaderCache final : public GroupCache, public model::StepRunner {
 public:
  explicit LeaderCache(Member& member);

  Result<Plan> Acquire(const AcquireRequest& request) override;
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override;

  /// Of sequences of this cache. `attention` and `executor` are the member's.
  Result<void> Step(std::span<const model::StepItem> items, AttentionBackend& attention,
                    Executor& executor) override;

  uint32_t ranks() const { return member_.group().size(); }
  /// What this rank has sent and received.
  const Traffic& traffic() const { return member_.group().traffic(); }

  /// Lets ranks that wait know that this one is there, and waits until all have answered: to be
  /// called more often than the group's deadline, also where there is nothing else to do.
  Result<void> Beat();
  /// The other ranks return from Follow. Sequences that are left end here alone; every other call
  /// is refused from now on.
  Result<void> Stop();

 private:
  class LeaderSequence;
  Result<void> TellOthers(const TenantChange& change,
                          const std::function<void()>& meanwhile) override;
  Result<void> Tell(const Command& command);

  Member& member_;
  const void* acquired_ = nullptr;  // the state of the last plan
  uint64_t next_ = 1;
  bool stopped_ = false;
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_LEADER_H_

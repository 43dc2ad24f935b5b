// Rank 0 of a sequence-parallel group: an engine on it uses a cache and takes steps as ever, and
// all ranks do so.
#ifndef QUIRE_RANKS_SEQUENCE_LEADER_H_
#define QUIRE_RANKS_SEQUENCE_LEADER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "model/step_runner.h"
#include "quire/cache.h"
#include "ranks/sequence/member.h"
#include "registry/forwarding_cache.h"

namespace quire::ranks::sequence {

/// Acquire, Open, and what is done with a sequence, is told to all ranks first. Lengths are those
/// of whole texts. A plan must be opened before the next Acquire, or never. Statistics, Evict,
/// Trim, Resize and Verify are those of this rank's share. kUnsupported: tenants, pins, loads
/// (Acquire has loaded all), Prefetch and Demote.
///
/// Threads:  one at a time, but for the calls of this rank's share, which are those of its cache
/// Lifetime: `member` must outlive it, and it must outlive its sequences
class LeaderCache final : public registry::ForwardingCache, public model::StepRunner {
 public:
  explicit LeaderCache(Member& member);

  Result<Plan> Acquire(const AcquireRequest& request) override;
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override;
  Result<Ticket> Load(Plan plan, const LoadOptions& options) override;
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) override;
  Result<void> Unpin(const AcquireRequest& request) override;
  Result<uint64_t> Prefetch(const AcquireRequest& request) override;
  Result<uint64_t> Demote(const AcquireRequest& request) override;
  Result<EraseReport> Erase(TenantId tenant) override;

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
  Result<void> Tell(const Command& command);

  Member& member_;
  const void* acquired_ = nullptr;  // the state of the last plan
  uint64_t next_ = 1;
  bool stopped_ = false;
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_LEADER_H_

// The cache of rank 0, whose sequences all ranks have.
#ifndef QUIRE_RANKS_PIPELINE_PIPELINE_CACHE_H_
#define QUIRE_RANKS_PIPELINE_PIPELINE_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "quire/sequence.h"
#include "ranks/group_cache.h"
#include "ranks/pipeline/leader.h"
#include "ranks/reserved_room.h"

namespace quire::ranks::pipeline {

/// A sequence of the first stage. The other ranks have one of the same tokens in their own caches:
/// it has room where all of them do, and ends with it.
class PipelineSequence final : public registry::ForwardingSequence {
 public:
  /// `room`: what all ranks have for it; `grows`: it will need more.
  PipelineSequence(std::unique_ptr<Sequence> own, uint64_t number, const ReservedRoom& room,
                   bool grows, Leader& leader)
      : ForwardingSequence(*own),
        own_(std::move(own)),
        number_(number),
        grows_(grows),
        room_(room),
        leader_(leader) {}
  ~PipelineSequence() override;

  uint64_t number() const { return number_; }
  Sequence& own() { return *own_; }

  Result<void> Reserve(uint64_t tokens) override;
  /// Asks all ranks for room behind so many tokens, where it will be needed soon: an answer takes
  /// as long as the steps that are under way.
  void ReserveAhead(uint64_t tokens);
  /// Errors: kUnsupported committed tokens would go: the other ranks keep theirs
  Result<void> Rollback(uint64_t position) override;
  Result<std::unique_ptr<Sequence>> Fork() override { return Refuse("forked"); }
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t>) override {
    return Refuse("cut to some of its blocks");
  }
  void Reset() override;

 private:
  static std::unexpected<Error> Refuse(std::string_view what);

  const std::unique_ptr<Sequence> own_;
  const uint64_t number_;
  const bool grows_;
  ReservedRoom room_;
  Leader& leader_;
  std::optional<uint64_t> asked_{};  // the message that asks for more room, until it is answered
  uint64_t ahead_tokens_ = 0;        // that were asked for last: if it was in vain, not again
};

/// Finds what all ranks have, and opens sequences on all of them or on none. What a rank's store
/// has is loaded, where ranks load, before Acquire returns.
///
/// Threads:  one, that of the leader
/// Lifetime: `own` and the leader must outlive it, and it its sequences
class PipelineCache final : public GroupCache {
 public:
  PipelineCache(Cache& own, Leader& leader) : GroupCache(own, "pipeline"), leader_(leader) {}

  /// Errors: as Cache::Acquire, of any rank; kIo a rank is lost
  Result<Plan> Acquire(const AcquireRequest& request) override;
  /// Opens the plan of the last Acquire.
  ///
  /// Errors: as Cache::Open, of any rank; kUnsupported contiguous, or resident_tokens; kIo a rank
  ///         is lost
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override;

 private:
  Result<void> TellOthers(const TenantChange& change,
                          const std::function<void()>& meanwhile) override;

  Leader& leader_;
  uint64_t last_number_ = 0;  // of a sequence
};

}  // namespace quire::ranks::pipeline

#endif  // QUIRE_RANKS_PIPELINE_PIPELINE_CACHE_H_

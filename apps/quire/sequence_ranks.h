// --ranks sequence: what a rank has besides its cache.
#ifndef QUIRE_APPS_SEQUENCE_RANKS_H_
#define QUIRE_APPS_SEQUENCE_RANKS_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/quire/ranks.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "ranks/group.h"
#include "ranks/sequence/lane_share.h"
#include "ranks/sequence/leader.h"
#include "ranks/sequence/member.h"
#include "ranks/sequence/share_cache.h"

namespace quire::app {

class SequenceRanks final : public Rank {
 public:
  /// Errors: kInvalidArgument a number of ranks that lanes cannot be divided among
  static Result<ranks::sequence::LaneShare> ShareOf(const ranks::Group& group);

  struct Components {
    ranks::Group& group;
    Cache& cache;
    model::Model& model;
    AttentionBackend& attention;
    Executor& executor;
    const Identity& identity;
    const Geometry& geometry;  // of the model
    bool loads = true;         // what the store has
  };
  /// Returns when all ranks are there.
  /// Errors: as ranks::sequence::ShareCache::Create and ranks::sequence::Member::Join
  static Result<std::unique_ptr<SequenceRanks>> Join(const Components& components);

  bool leads() const override { return leader_ != nullptr; }
  Result<void> Follow() override { return ranks::sequence::Follow(*member_, vocab_); }
  Cache& cache() override { return *leader_; }
  model::StepRunner* steps() override { return leader_.get(); }
  Result<void> KeepAlive() override;
  Result<void> Stop() override { return leader_->Stop(); }
  nlohmann::ordered_json Describe() const override;

 private:
  SequenceRanks(ranks::sequence::ShareCache cache, const Components& components);

  ranks::sequence::ShareCache cache_;
  const uint64_t vocab_;
  std::unique_ptr<ranks::sequence::Member> member_;
  std::unique_ptr<ranks::sequence::LeaderCache> leader_;
  uint64_t beat_us_ = 0;  // when the others were asked last whether they are there
};

}  // namespace quire::app

#endif  // QUIRE_APPS_SEQUENCE_RANKS_H_

// --ranks pipeline: what a rank has besides its layers and its cache.
#ifndef QUIRE_APPS_PIPELINE_RANK_H_
#define QUIRE_APPS_PIPELINE_RANK_H_

#include <functional>
#include <memory>
#include <string>

#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "ranks/group.h"
#include "ranks/pipeline/leader.h"
#include "ranks/pipeline/pipeline_cache.h"
#include "ranks/pipeline/ring.h"
#include "ranks/pipeline/stage.h"

namespace quire::app {

class PipelineRank {
 public:
  struct Components {
    ranks::Group& group;
    model::Model& model;
    Cache& cache;
    AttentionBackend& attention;
    Executor& executor;
    bool loads = true;              // what its store has
    std::string settings{};         // that all ranks must have alike
    std::function<void()> flush{};  // its store
  };
  /// Returns when all ranks are there. On rank 0 the identity is complete then.
  /// Errors: as ranks::pipeline::Leader::Join
  static Result<std::unique_ptr<PipelineRank>> Join(const Components& components,
                                                    Identity& identity);

  /// Null: this rank follows.
  ranks::pipeline::Leader* leader() { return leader_.get(); }
  /// Of the leader.
  Cache& cache() { return *cache_; }
  /// Does what rank 0 says, until it stops.
  Result<void> Follow() { return stage_->Serve(ring_); }

 private:
  explicit PipelineRank(ranks::Group& group);

  ranks::pipeline::Ring ring_;
  std::unique_ptr<ranks::pipeline::Stage> stage_;          // of those that follow
  std::unique_ptr<ranks::pipeline::Leader> leader_;        // of rank 0
  std::unique_ptr<ranks::pipeline::PipelineCache> cache_;  // likewise
};

}  // namespace quire::app

#endif  // QUIRE_APPS_PIPELINE_RANK_H_

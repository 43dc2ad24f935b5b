// --ranks pipeline: what a rank has besides its layers and its cache.
#ifndef QUIRE_APPS_PIPELINE_RANK_H_
#define QUIRE_APPS_PIPELINE_RANK_H_

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/quire/ranks.h"
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

class PipelineRank final : public Rank {
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

  bool leads() const override { return leader_ != nullptr; }
  Result<void> Follow() override { return stage_->Serve(ring_); }
  Cache& cache() override { return *cache_; }
  model::StepFlow* flow() override { return leader_.get(); }
  Result<void> KeepAlive() override { return ring_.Check(); }  // it says by itself that it is there
  Result<void> Stop() override { return leader_->Stop(); }
  nlohmann::ordered_json Describe() const override;

 private:
  PipelineRank(ranks::Group& group, const model::Model& model);

  const model::Model& model_;
  ranks::pipeline::Ring ring_;
  std::unique_ptr<ranks::pipeline::Stage> stage_;          // of those that follow
  std::unique_ptr<ranks::pipeline::Leader> leader_;        // of rank 0
  std::unique_ptr<ranks::pipeline::PipelineCache> cache_;  // likewise
};

}  // namespace quire::app

#endif  // QUIRE_APPS_PIPELINE_RANK_H_

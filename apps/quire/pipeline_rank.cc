#include "apps/quire/pipeline_rank.h"

#include "env/clock.h"

namespace quire::app {

PipelineRank::PipelineRank(ranks::Group& group, const model::Model& model)
    : model_(model), ring_(group, SystemClock()) {}

Result<std::unique_ptr<PipelineRank>> PipelineRank::Join(const Components& components,
                                                         Identity& identity) {
  ranks::Group& group = components.group;
  QUIRE_TRY(group.Barrier(kRankLoadDeadlineUs));
  std::unique_ptr<PipelineRank> rank(new PipelineRank(group, components.model));
  const ranks::pipeline::StageSetup setup = {.rank = rank->ring_.rank(),
                                             .ranks = rank->ring_.ranks(),
                                             .loads = components.loads,
                                             .settings = components.settings,
                                             .flush = components.flush};
  if (setup.rank > 0) {
    rank->stage_ = std::make_unique<ranks::pipeline::Stage>(
        ranks::pipeline::Stage::Components{.model = components.model,
                                           .cache = components.cache,
                                           .attention = components.attention,
                                           .executor = components.executor},
        setup, identity);
    return rank;
  }
  rank->leader_ = std::make_unique<ranks::pipeline::Leader>(
      ranks::pipeline::Leader::Components{.model = components.model,
                                          .attention = components.attention,
                                          .executor = components.executor},
      setup, rank->ring_);
  QUIRE_TRY(rank->leader_->Join(identity));
  rank->cache_ = std::make_unique<ranks::pipeline::PipelineCache>(components.cache, *rank->leader_);
  return rank;
}

nlohmann::ordered_json PipelineRank::Describe() const {
  return {{"mode", "pipeline"},
          {"count", ring_.ranks()},
          {"layers", model_.layers().count},
          {"weight_bytes", model_.weight_bytes()}};
}

}  // namespace quire::app

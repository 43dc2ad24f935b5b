#include "apps/quire/plan_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "apps/quire/command.h"
#include "base/bits.h"
#include "cache/planned_bytes.h"
#include "model/stage.h"
#include "model/weights.h"
#include "quire/attention_types.h"
#include "quire/sequence.h"

namespace quire::app {

namespace {

Result<nlohmann::ordered_json> PlanStage(const RanksPlan& plan, uint32_t rank,
                                         const model::ModelConfig& config,
                                         const NumericProfile& profile) {
  QUIRE_ASSIGN(const model::LayerRange layers, model::LayersOfStage(config, rank, plan.ranks));
  const Geometry geometry = model::GeometryOf(model::ConfigOfLayers(config, layers));
  QUIRE_ASSIGN(const auto kv,
               cache::PlanBytes(geometry, profile, plan.tokens, SequenceOptions{}.step_tokens));
  return nlohmann::ordered_json{{"rank", rank},
                                {"first_layer", layers.first},
                                {"layers", layers.count},
                                {"bytes_weights", model::MatrixBytes(config, layers, plan.type)},
                                {"bytes_total", kv.total()}};
}

// Of every so many consecutive splits as there are ranks, each rank has one (docs/ranks.md).
nlohmann::ordered_json PlanShare(const RanksPlan& plan, uint32_t rank,
                                 const model::ModelConfig& config, const NumericProfile& profile,
                                 const cache::PlannedBytes& kv) {
  uint64_t splits = 0;
  uint64_t blocks = 0;
  for (uint64_t split = rank; split * kSplitTokens < plan.tokens; split += plan.ranks) {
    const uint64_t tokens = std::min<uint64_t>(kSplitTokens, plan.tokens - split * kSplitTokens);
    ++splits;
    blocks += DivUp<uint64_t>(tokens, profile.block_tokens);
  }
  // Layers with a window hold less than all blocks, on any rank.
  const uint64_t stored = std::min(blocks * kv.block_bytes, kv.stored);
  return {{"rank", rank},
          {"lanes", kLanes / plan.ranks},
          {"splits", splits},
          {"bytes_weights", model::MatrixBytes(config, model::AllLayers(config), plan.type)},
          {"bytes_total", stored + kv.open}};
}

}  // namespace

Result<nlohmann::ordered_json> PlanRanks(const RanksPlan& plan, const model::ModelConfig& config,
                                         const NumericProfile& profile) {
  const bool pipeline = plan.ranks <= config.layers;
  const bool sequence = plan.ranks <= kLanes && std::has_single_bit(plan.ranks);
  if (!pipeline && !sequence) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--ranks {}: a pipeline of this model has at most {} ranks, and "
                            "sequence parallel needs 1, 2, 4, 8 or 16",
                            plan.ranks, config.layers));
  }
  QUIRE_ASSIGN(const auto kv, cache::PlanBytes(model::GeometryOf(config), profile, plan.tokens,
                                               SequenceOptions{}.step_tokens));
  nlohmann::ordered_json report = {
      {"ranks", plan.ranks}, {"pipeline", nullptr}, {"sequence", nullptr}};
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
    if (pipeline) {
      QUIRE_ASSIGN(auto each, PlanStage(plan, rank, config, profile));
      report["pipeline"].push_back(std::move(each));
    }
    if (sequence) report["sequence"].push_back(PlanShare(plan, rank, config, profile, kv));
  }
  return report;
}

std::string RanksTable(const nlohmann::ordered_json& plan) {
  const auto bytes = [](const nlohmann::ordered_json& each, const char* name) {
    return FormatBytes(each[name].get<uint64_t>());
  };
  std::string table;
  for (const auto& each : plan["pipeline"]) {
    const auto first = each["first_layer"].get<uint32_t>();
    const auto layers = each["layers"].get<uint32_t>();
    table += fmt::format("pipeline rank {:<3} {:>12} of weights {:>12} of KV, layers {} to {}\n",
                         each["rank"].get<uint32_t>(), bytes(each, "bytes_weights"),
                         bytes(each, "bytes_total"), first, first + layers - 1);
  }
  for (const auto& each : plan["sequence"]) {
    table += fmt::format("sequence rank {:<3} {:>12} of weights {:>12} of KV, {} splits\n",
                         each["rank"].get<uint32_t>(), bytes(each, "bytes_weights"),
                         bytes(each, "bytes_total"), each["splits"].get<uint64_t>());
  }
  return table;
}

}  // namespace quire::app

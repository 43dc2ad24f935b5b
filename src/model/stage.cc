#include "model/stage.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/hash.h"

namespace quire::model {

LayerRange AllLayers(const ModelConfig& config) {
  return {.first = 0, .count = config.layers, .of = config.layers};
}

Result<LayerRange> LayersOfStage(const ModelConfig& config, uint32_t stage, uint32_t stages) {
  if (stages == 0 || stage >= stages) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("stage {} of {}: there is no such stage", stage, stages));
  }
  if (stages > config.layers) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} stages: the model has {} layers, and each stage needs one; start "
                            "at most {} ranks",
                            stages, config.layers, config.layers));
  }
  const uint32_t each = config.layers / stages;
  const uint32_t more = config.layers % stages;  // stages with one more
  return LayerRange{.first = stage * each + std::min(stage, more),
                    .count = each + (stage < more ? 1 : 0),
                    .of = config.layers};
}

ModelConfig ConfigOfLayers(const ModelConfig& config, const LayerRange& layers) {
  ModelConfig of_stage = config;
  of_stage.layers = layers.count;
  of_stage.window_layers.clear();
  for (const uint32_t layer : config.window_layers) {
    if (layer < layers.first || layer >= layers.end()) continue;
    of_stage.window_layers.push_back(layer - layers.first);
  }
  return of_stage;
}

Digest StageFingerprint(std::span<const Digest> fingerprints, const LayerRange& layers) {
  if (layers.is_whole()) return fingerprints.front();
  Blake2b<32> hash;
  hash.Update("stage");
  for (const uint32_t number : {layers.first, layers.count, layers.of}) hash.UpdateNumber(number);
  hash.UpdateNumber(uint64_t{fingerprints.size()});
  for (const Digest& fingerprint : fingerprints) hash.Update(std::as_bytes(std::span(fingerprint)));
  return hash.Finish();
}

}  // namespace quire::model

// A model cut into stages: each has some consecutive layers, the first one the embeddings too, the
// last one the final norm and the output matrix.
#ifndef QUIRE_MODEL_STAGE_H_
#define QUIRE_MODEL_STAGE_H_

#include <cstdint>
#include <span>

#include "model/config.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// Consecutive layers of a model.
struct LayerRange {
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t of = 0;  // layers of the whole model

  uint32_t end() const { return first + count; }
  bool is_first() const { return first == 0; }
  bool is_last() const { return end() == of; }
  bool is_whole() const { return is_first() && is_last(); }

  bool operator==(const LayerRange&) const = default;
};

LayerRange AllLayers(const ModelConfig& config);

/// The layers of one of `stages`: as many as the others have, or one more, which the first stages
/// get.
///
/// Errors: kInvalidArgument fewer layers than stages, no stages, or no such stage
Result<LayerRange> LayersOfStage(const ModelConfig& config, uint32_t stage, uint32_t stages);

/// The config of a model of these layers alone: it shapes the stage's cache.
ModelConfig ConfigOfLayers(const ModelConfig& config, const LayerRange& layers);

/// What the values of a stage's cache depend on: the weights of all stages, because what a layer is
/// given is computed by those before it, and which layers it has. Of a whole model: its
/// fingerprint, so that a pipeline of one stage finds what a process without stages has stored.
///
/// Shape:  fingerprints [stages]: Model::fingerprint of each, in order
/// Source: DESIGN invariant 5
Digest StageFingerprint(std::span<const Digest> fingerprints, const LayerRange& layers);

}  // namespace quire::model

#endif  // QUIRE_MODEL_STAGE_H_

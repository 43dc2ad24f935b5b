// Outlier channels, taken from the keys and given to the queries before K is encoded.
#ifndef QUIRE_MODEL_KEY_FACTORS_H_
#define QUIRE_MODEL_KEY_FACTORS_H_

#include "model/config.h"
#include "model/weights.h"

namespace quire::model {

/// Chooses the layer's key_factors and query_factors from its weights alone, by docs/codecs.md
/// ("Factors"): powers of two, the same for both channels of a rotary pair and for all query heads
/// of a KV head. The layer's matrices, norms and biases must be loaded.
///
/// Cost: reads the rows of q_proj and k_proj once
void FindKeyFactors(const ModelConfig& config, LayerWeights& layer);

}  // namespace quire::model

#endif  // QUIRE_MODEL_KEY_FACTORS_H_

// Shapes of models that several benches run.
#ifndef QUIRE_BENCH_SHAPES_H_
#define QUIRE_BENCH_SHAPES_H_

#include <cstdint>

#include "model/config.h"
#include "model/random_model.h"

namespace quire::bench {

/// Of models/tiny.
inline model::ModelConfig TinyShape() {
  model::ModelConfig config = model::SmallConfig();
  config.hidden = 256;
  config.intermediate = 640;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.vocab = 288;
  config.layers = 4;
  return config;
}

/// Of Qwen3-0.6B, which has 28 layers, with a small vocabulary.
inline model::ModelConfig LargeShape(uint32_t layers) {
  model::ModelConfig config = model::SmallConfig();
  config.hidden = 1024;
  config.intermediate = 3072;
  config.query_heads = 16;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.vocab = 8192;
  config.rope.theta = 1e6;
  config.layers = layers;
  return config;
}

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SHAPES_H_

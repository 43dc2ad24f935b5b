// Shapes of models that several benches run.
#ifndef QUIRE_BENCH_SHAPES_H_
#define QUIRE_BENCH_SHAPES_H_

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

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SHAPES_H_

// From logits to the next token (docs/numerics.md section 4).
#ifndef QUIRE_MODEL_SAMPLING_H_
#define QUIRE_MODEL_SAMPLING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "quire/ids.h"

namespace quire::model {

struct SamplingOptions {
  float temperature = 0.0f;  // 0: the most likely token
  uint64_t seed = 0;         // same seed and logits, same tokens
};

/// Chooses the tokens of one sequence.
/// Threads: one object on one thread at a time
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options)
      : temperature_(options.temperature), prng_(options.seed) {}

  /// The next token; with a temperature, one draw from the generator.
  ///
  /// Shape: logits [vocab], not empty. NaN is never chosen unless all are NaN: then token 0
  TokenId Next(std::span<const float> logits);

 private:
  float temperature_;
  Prng prng_;
  std::vector<float> weights_;  // scratch [vocab]
};

/// The largest logit; of equal ones the smallest id.
TokenId Greedy(std::span<const float> logits);

}  // namespace quire::model

#endif  // QUIRE_MODEL_SAMPLING_H_

// From logits to the next token (docs/numerics.md section 4).
#ifndef QUIRE_MODEL_SAMPLING_H_
#define QUIRE_MODEL_SAMPLING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "quire/identity.h"

namespace quire::model {

struct SamplingOptions {
  float temperature = 0.0f;  // 0: the most likely token
  uint64_t seed = 0;         // same seed and logits, same tokens
  uint32_t top_k = 0;        // with a temperature: only the most likely top_k; 0: all
  float top_p = 1.0f;        // and of those the fewest that have this share of their weight
  // With a temperature, before both: none that is less likely than this share of the likeliest.
  float min_p = 0.0f;
};

/// All that decides the next tokens besides the logits.
struct SamplerState {
  SamplingOptions options{};
  Prng::State prng = Prng(0).state();
};

/// Chooses the tokens of one sequence.
/// With a temperature it needs CpuIsSupported (model/layers.h), as every model does.
///
/// Threads: one object on one thread at a time
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), prng_(options.seed) {}
  /// Goes on where another one was.
  explicit Sampler(const SamplerState& state) : options_(state.options), prng_(state.prng) {}

  const SamplingOptions& options() const { return options_; }
  SamplerState state() const { return {.options = options_, .prng = prng_.state()}; }

  /// The next token; with a temperature, one draw from the generator.
  ///
  /// Shape: logits [vocab], not empty. NaN is never chosen unless all are NaN: then token 0
  TokenId Next(std::span<const float> logits);

 private:
  void Weigh(std::span<const float> logits, float max);
  void KeepMostLikely(std::span<const float> logits);
  void KeepShare(std::span<const float> logits);
  void Keep(size_t count);
  double Total() const;

  SamplingOptions options_;
  Prng prng_;
  std::vector<float> weights_;  // scratch [vocab]
  std::vector<uint32_t> ids_;   // scratch: those that may be kept, the likeliest first
  std::vector<float> kept_;     // scratch: their weights
};

/// The largest logit; of equal ones the smallest id.
TokenId Greedy(std::span<const float> logits);

}  // namespace quire::model

#endif  // QUIRE_MODEL_SAMPLING_H_

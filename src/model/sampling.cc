#include "model/sampling.h"

#include <cmath>
#include <limits>

#include "attention/exp.h"
#include "base/check.h"

namespace quire::model {

TokenId Greedy(std::span<const float> logits) {
  QUIRE_CHECK(!logits.empty());
  size_t best = 0;
  for (size_t id = 1; id < logits.size(); ++id) {
    if (logits[id] > logits[best] || (std::isnan(logits[best]) && !std::isnan(logits[id]))) {
      best = id;
    }
  }
  return static_cast<TokenId>(best);
}

TokenId Sampler::Next(std::span<const float> logits) {
  const TokenId best = Greedy(logits);
  if (!(temperature_ > 0.0f)) return best;
  const double draw = prng_.NextDouble();
  const float max = logits[static_cast<size_t>(best)] / temperature_;
  if (!std::isfinite(max)) return best;  // one infinite logit outweighs all others
  weights_.resize(logits.size());
  double total = 0.0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float z = logits[id] / temperature_;
    weights_[id] = std::isnan(z) ? 0.0f : attention::Exp(z - max);
    total += weights_[id];
  }
  const double threshold = draw * total;
  double sum = 0.0;
  for (size_t id = 0; id < logits.size(); ++id) {
    sum += weights_[id];
    if (sum > threshold) return static_cast<TokenId>(id);
  }
  return best;  // draw * total rounded up to the total
}

}  // namespace quire::model

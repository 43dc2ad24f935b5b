#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/scalar.h"
#include "base/check.h"

namespace quire::model {

// The largest of a block is sought with many maxima beside each other, and its place in that block
// alone: one after the other, comparisons of 150,000 logits took longer than their product.
TokenId Greedy(std::span<const float> logits) {
  QUIRE_CHECK(!logits.empty());
  constexpr size_t kBlock = 1024;
  constexpr size_t kMaxima = 16;
  float most = -std::numeric_limits<float>::infinity();
  size_t block = 0;  // the first one that has `most`
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto some = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    float maxima[kMaxima];
    std::ranges::fill(maxima, most);
    size_t i = 0;
    for (; i + kMaxima <= some.size(); i += kMaxima) {
      for (size_t j = 0; j < kMaxima; ++j) {
        maxima[j] = some[i + j] > maxima[j] ? some[i + j] : maxima[j];  // not NaN
      }
    }
    for (; i < some.size(); ++i) maxima[0] = some[i] > maxima[0] ? some[i] : maxima[0];
    const float largest = *std::ranges::max_element(maxima);
    if (largest > most) {
      most = largest;
      block = begin;
    }
  }
  const auto found = std::ranges::find(logits.subspan(block), most);
  // All are NaN: the first one, as good as any.
  return found == logits.end() ? 0 : static_cast<TokenId>(found - logits.begin());
}

TokenId Sampler::Next(std::span<const float> logits) {
  const TokenId best = Greedy(logits);
  if (!(options_.temperature > 0.0f)) return best;
  const double draw = prng_.NextDouble();
  const float max = logits[static_cast<size_t>(best)] / options_.temperature;
  if (!std::isfinite(max)) return best;  // one infinite logit outweighs all others
  weights_.resize(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const float z = logits[id] / options_.temperature;
    weights_[id] = std::isnan(z) ? 0.0f : attention::Exp(z - max);
    if (weights_[id] < options_.min_p) weights_[id] = 0.0f;  // the likeliest has weight 1
  }
  if (options_.top_k != 0 || options_.top_p < 1.0f) KeepMostLikely(logits);
  double total = 0.0;
  for (const float weight : weights_) total += weight;
  const double threshold = draw * total;
  double sum = 0.0;
  for (size_t id = 0; id < logits.size(); ++id) {
    sum += weights_[id];
    if (sum > threshold) return static_cast<TokenId>(id);
  }
  return best;  // draw * total rounded up to the total
}

// The others lose their weight. Logits decide, then the smaller id: only one order is right.
void Sampler::KeepMostLikely(std::span<const float> logits) {
  ids_.clear();
  for (size_t id = 0; id < weights_.size(); ++id) {
    if (weights_[id] > 0.0f) ids_.push_back(static_cast<uint32_t>(id));
  }
  const auto likelier = [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  size_t kept = ids_.size();
  if (options_.top_k != 0) kept = std::min<size_t>(kept, options_.top_k);
  std::partial_sort(ids_.begin(), ids_.begin() + static_cast<int64_t>(kept), ids_.end(), likelier);
  if (options_.top_p < 1.0f) {
    double total = 0.0;
    for (size_t i = 0; i < kept; ++i) total += weights_[ids_[i]];
    double sum = 0.0;
    size_t count = 0;
    while (count < kept && sum < options_.top_p * total) sum += weights_[ids_[count++]];
    kept = std::max<size_t>(count, std::min<size_t>(kept, 1));
  }
  for (size_t i = kept; i < ids_.size(); ++i) weights_[ids_[i]] = 0.0f;
}

}  // namespace quire::model

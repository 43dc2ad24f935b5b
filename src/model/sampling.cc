#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "model/layers.h"

namespace quire::model {
namespace {

/// Logits decide, then the smaller id: only one order is right.
struct Likelier {
  bool operator()(uint32_t a, uint32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
  std::span<const float> logits;
};

}  // namespace

// Many maxima beside each other, and the place of the largest is sought in its block alone: one
// comparison after the other took half a millisecond for 150,000 logits. NaN is larger than none.
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
        maxima[j] = some[i + j] > maxima[j] ? some[i + j] : maxima[j];
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
  Weigh(logits, max);
  if (options_.top_k != 0) KeepMostLikely(logits);
  if (options_.top_p < 1.0f) KeepShare(logits);
  const double total = Total();
  const double threshold = draw * total;
  double sum = 0.0;
  for (size_t id = 0; id < logits.size(); ++id) {
    sum += weights_[id];
    if (sum > threshold) return static_cast<TokenId>(id);
  }
  return best;  // draw * total rounded up to the total
}

void Sampler::Weigh(std::span<const float> logits, float max) {
  weights_.resize(logits.size());
  WeighLogits(logits.data(), static_cast<uint32_t>(logits.size()), options_.temperature, max,
              weights_.data());
  if (!(options_.min_p > 0.0f)) return;
  for (float& weight : weights_) {
    if (weight < options_.min_p) weight = 0.0f;  // the likeliest has weight 1
  }
}

double Sampler::Total() const {
  double total = 0.0;
  for (const float weight : weights_) total += weight;
  return total;
}

void Sampler::KeepMostLikely(std::span<const float> logits) {
  ids_.clear();
  for (size_t id = 0; id < weights_.size(); ++id) {
    if (weights_[id] > 0.0f) ids_.push_back(static_cast<uint32_t>(id));
  }
  const size_t count = std::min<size_t>(ids_.size(), options_.top_k);
  std::partial_sort(ids_.begin(), ids_.begin() + static_cast<int64_t>(count), ids_.end(),
                    Likelier{logits});
  Keep(count);
}

void Sampler::KeepShare(std::span<const float> logits) {
  const double share = std::max(0.0, static_cast<double>(options_.top_p));
  const double total = Total();
  // All that is lighter has together at most half of what may be left out, so none of it is kept,
  // and need not be sorted.
  const double lightest = 0.5 * (1.0 - share) * total / static_cast<double>(weights_.size());
  ids_.clear();
  for (size_t id = 0; id < weights_.size(); ++id) {
    if (weights_[id] > 0.0f && weights_[id] >= lightest) ids_.push_back(static_cast<uint32_t>(id));
  }
  std::ranges::sort(ids_, Likelier{logits});
  double sum = 0.0;
  size_t count = 0;
  while (count < ids_.size() && sum < share * total) sum += weights_[ids_[count++]];
  Keep(std::max<size_t>(count, 1));
}

// The first of ids_; the others lose their weight.
void Sampler::Keep(size_t count) {
  ids_.resize(std::min(count, ids_.size()));
  kept_.clear();
  for (const uint32_t id : ids_) kept_.push_back(weights_[id]);
  std::ranges::fill(weights_, 0.0f);
  for (size_t i = 0; i < ids_.size(); ++i) weights_[ids_[i]] = kept_[i];
}

}  // namespace quire::model

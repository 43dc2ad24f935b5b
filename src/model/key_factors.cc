#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace quire::model {
namespace {

// K and the queries stay far inside the range of f16 and bf16.
constexpr int kExponentMax = 16;

// Mean square that a channel of q or k would have if the normed input were white, but for a factor
// that all channels of the head share. Sums in f64, in the order of the loops: the same everywhere.
class ChannelPower {
 public:
  ChannelPower(const ModelConfig& config, const LayerWeights& layer)
      : head_dim_(config.head_dim), layer_(layer), row_(layer.qkv.k) {}

  // Of the rotary pair (i, i + head_dim / 2) of the head whose rows of qkv begin at first_row.
  double OfPair(uint32_t first_row, uint32_t i, const std::vector<float>& norm) {
    return OfRow(first_row, i, norm) + OfRow(first_row, i + head_dim_ / 2, norm);
  }

 private:
  double OfRow(uint32_t first_row, uint32_t d, const std::vector<float>& norm) {
    UnpackRow(layer_.qkv, first_row + d, row_.data());
    double sum = 0;
    for (uint32_t k = 0; k < layer_.qkv.k; ++k) {
      const double value = double{row_[k]} * double{layer_.input_norm[k]};
      sum += value * value;
    }
    if (!layer_.qkv_bias.empty()) {
      const double bias = layer_.qkv_bias[first_row + d];
      sum += bias * bias;
    }
    const double weight = norm.empty() ? 1.0 : double{norm[d]};
    return sum * weight * weight;
  }

  const uint32_t head_dim_;
  const LayerWeights& layer_;
  std::vector<float> row_;
};

// e such that 2^e is nearest to the fourth root of the ratio of powers: the square root of that of
// magnitudes. Exact: the ratios at which e changes are powers of two themselves.
int ExponentOf(double key_power, double query_power) {
  const double ratio = key_power / query_power;
  if (!std::isnormal(ratio)) return 0;  // a channel that is always 0, or weights that are broken
  return static_cast<int>(std::floor((std::ilogb(ratio) + 2) / 4.0));
}

}  // namespace

void FindKeyFactors(const ModelConfig& config, LayerWeights& layer) {
  const uint32_t dim = config.head_dim;
  const uint32_t group = config.query_heads / config.kv_heads;
  layer.key_factors.resize(config.kv_dim());
  layer.query_factors.resize(config.query_dim());
  ChannelPower power(config, layer);
  std::vector<int> exponents(dim / 2);
  for (uint32_t head = 0; head < config.kv_heads; ++head) {
    for (uint32_t i = 0; i < dim / 2; ++i) {
      double queries = 0;
      for (uint32_t q = head * group; q < (head + 1) * group; ++q) {
        queries += power.OfPair(q * dim, i, layer.q_norm);
      }
      const double keys = power.OfPair(config.query_dim() + head * dim, i, layer.k_norm);
      exponents[i] = ExponentOf(keys, queries);
    }
    // What all pairs share does not matter; without it the keys keep their range.
    std::vector<int> sorted = exponents;
    const auto middle = sorted.begin() + dim / 4;
    std::ranges::nth_element(sorted, middle);
    for (uint32_t i = 0; i < dim / 2; ++i) {
      const int exponent = std::clamp(exponents[i] - *middle, -kExponentMax, kExponentMax);
      for (const uint32_t d : {i, i + dim / 2}) {
        layer.key_factors[head * dim + d] = std::ldexp(1.0f, -exponent);
        for (uint32_t q = head * group; q < (head + 1) * group; ++q) {
          layer.query_factors[q * dim + d] = std::ldexp(1.0f, exponent);
        }
      }
    }
  }
}

}  // namespace quire::model

// The order of docs/numerics.md section 3 in plain loops, and every operator against it by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/scalar.h"
#include "base/prng.h"
#include "model/layers.h"
#include "model/rope.h"
#include "model/tensor_source.h"

namespace quire::model {
namespace {

constexpr ComputeType kTypes[] = {ComputeType::kF32, ComputeType::kF16, ComputeType::kBf16};
constexpr uint32_t kLengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 100, 129, 1024};

float JudgeSumOfSquares(const std::vector<float>& x) {
  float partials[16] = {};
  for (size_t i = 0; i < x.size(); ++i) partials[i % 16] = std::fma(x[i], x[i], partials[i % 16]);
  for (size_t j = 0; j < 8; ++j) partials[j] += partials[j + 8];
  for (size_t j = 0; j < 4; ++j) partials[j] += partials[j + 4];
  for (size_t j = 0; j < 2; ++j) partials[j] += partials[j + 2];
  return partials[0] + partials[1];
}

std::vector<float> JudgeNorm(const std::vector<float>& x, const std::vector<float>& weight,
                             float eps, ComputeType round) {
  const float mean = JudgeSumOfSquares(x) / static_cast<float>(x.size());
  const float inverse = 1.0f / std::sqrt(mean + eps);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = RoundValue(round, RoundValue(round, x[i] * inverse) * weight[i]);
  }
  return y;
}

constexpr double kPi = 3.141592653589793;

double JudgeFrequency(const RopeConfig& rope, uint32_t i, uint32_t head_dim) {
  const double n = head_dim;
  const double f = std::pow(rope.theta, -2.0 * i / n);
  const double original = rope.original_positions;
  if (rope.type == RopeType::kLinear) return f / rope.factor;
  if (rope.type == RopeType::kLlama3) {
    const double wavelength = 2 * kPi / f;
    if (wavelength < original / rope.high_freq_factor) return f;
    if (wavelength > original / rope.low_freq_factor) return f / rope.factor;
    const double s = (original / wavelength - rope.low_freq_factor) /
                     (rope.high_freq_factor - rope.low_freq_factor);
    return (1 - s) * f / rope.factor + s * f;
  }
  if (rope.type == RopeType::kYarn) {
    const auto channel = [&](double turns) {
      return n * std::log(original / (turns * 2 * kPi)) / (2 * std::log(rope.theta));
    };
    double low = channel(rope.beta_fast);
    double high = channel(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = low < 0 ? 0 : low;
    high = high > n - 1 ? n - 1 : high;
    if (low == high) high += 0.001;
    double ramp = (i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f / rope.factor * ramp + f * (1 - ramp);
  }
  return f;
}

void JudgeRotate(const RopeConfig& rope, uint64_t position, ComputeType round,
                 std::vector<float>& x) {
  const size_t half = x.size() / 2;
  const auto factor = static_cast<float>(rope.attention_factor);
  for (uint32_t i = 0; i < half; ++i) {
    const auto frequency =
        static_cast<float>(JudgeFrequency(rope, i, static_cast<uint32_t>(x.size())));
    const float angle = static_cast<float>(position) * frequency;
    const float c = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
    const float s = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
    const float left = x[i];
    const float right = x[i + half];
    x[i] = RoundValue(round, std::fma(left, c, -(right * s)));
    x[i + half] = RoundValue(round, std::fma(right, c, left * s));
  }
}

std::vector<float> Random(size_t n, float scale, Prng& prng) {
  std::vector<float> x(n);
  for (float& value : x) value = prng.NextFloat(-scale, scale);
  return x;
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& judge,
                    ComputeType round) {
  ASSERT_EQ(got.size(), judge.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &judge[i], sizeof(float)), 0)
        << "value " << i << " of " << got.size() << ": " << got[i] << " vs " << judge[i]
        << ", type " << static_cast<int>(round);
  }
}

TEST(ReferenceTest, NormEqualsTheJudge) {
  Prng prng(1);
  for (const ComputeType round : kTypes) {
    for (const uint32_t n : kLengths) {
      const std::vector<float> x = Random(n, 3.0f, prng);
      const std::vector<float> weight = Random(n, 2.0f, prng);
      std::vector<float> y(n);
      RmsNorm(x.data(), weight.data(), n, 1e-6f, round, y.data());
      ExpectSameBits(y, JudgeNorm(x, weight, 1e-6f, round), round);
    }
  }
}

TEST(ReferenceTest, HeadsEqualTheJudge) {
  Prng prng(2);
  constexpr uint32_t kHeads = 3;
  for (const ComputeType round : kTypes) {
    for (const uint32_t head_dim : {2u, 6u, 16u, 24u, 64u, 80u, 128u, 256u}) {
      const RopeConfig config = {.theta = 1e6};
      const Rope rope(config, head_dim);
      const std::vector<float> weight = Random(head_dim, 2.0f, prng);
      for (const uint64_t position : {0ull, 1ull, 255ull, 40'000ull, 1'000'003ull}) {
        std::vector<float> x = Random(size_t{kHeads} * head_dim, 3.0f, prng);
        std::vector<float> angles(head_dim);
        rope.Angles(position, angles.data());
        std::vector<float> judge;
        for (uint32_t h = 0; h < kHeads; ++h) {
          const std::vector<float> head(x.begin() + h * head_dim, x.begin() + (h + 1) * head_dim);
          std::vector<float> y = JudgeNorm(head, weight, 1e-5f, round);
          JudgeRotate(config, position, round, y);
          judge.insert(judge.end(), y.begin(), y.end());
        }
        RotateHeads({.heads = kHeads,
                     .head_dim = head_dim,
                     .norm_weight = weight.data(),
                     .norm_eps = 1e-5f,
                     .round = round},
                    x.data(), angles.data(), x.data());
        ExpectSameBits(x, judge, round);
      }
    }
  }
}

const RopeConfig kVariants[] = {
    {.type = RopeType::kLinear, .theta = 1e4, .factor = 2.5},
    {.type = RopeType::kLlama3,
     .theta = 5e5,
     .factor = 8,
     .original_positions = 8192,
     .low_freq_factor = 1,
     .high_freq_factor = 4},
    {.type = RopeType::kYarn,
     .theta = 1e6,
     .factor = 4,
     .original_positions = 32'768,
     .beta_fast = 32,
     .beta_slow = 1,
     .truncate = true,
     .attention_factor = 1.1386294361119891},
    {.type = RopeType::kYarn,
     .theta = 150'000,
     .factor = 32,
     .original_positions = 4096,
     .beta_fast = 32,
     .beta_slow = 1,
     .truncate = false,
     .attention_factor = 1.25},
};

// Without a norm too, in place and not.
TEST(ReferenceTest, EveryRotationEqualsTheJudge) {
  Prng prng(6);
  for (const RopeConfig& config : kVariants) {
    for (const ComputeType round : kTypes) {
      for (const uint32_t head_dim : {8u, 24u, 64u, 80u, 128u, 256u}) {
        const Rope rope(config, head_dim);
        for (const uint64_t position : {0ull, 1ull, 255ull, 40'000ull, 1'000'003ull}) {
          std::vector<float> x = Random(head_dim, 3.0f, prng);
          std::vector<float> angles(head_dim);
          rope.Angles(position, angles.data());
          std::vector<float> judge = x;
          JudgeRotate(config, position, round, judge);
          const HeadsOp op = {.heads = 1, .head_dim = head_dim, .round = round};
          std::vector<float> out(head_dim);
          RotateHeads(op, x.data(), angles.data(), out.data());
          ExpectSameBits(out, judge, round);
          RotateHeads(op, x.data(), angles.data(), x.data());
          ExpectSameBits(x, judge, round);
        }
      }
    }
  }
}

TEST(ReferenceTest, SwiGluEqualsTheJudge) {
  Prng prng(3);
  for (const ComputeType round : kTypes) {
    for (const uint32_t n : kLengths) {
      std::vector<float> gate = Random(n, 100.0f, prng);
      const std::vector<float> up = Random(n, 4.0f, prng);
      gate[0] = 0.0f;
      std::vector<float> judge(n);
      for (size_t i = 0; i < n; ++i) {
        const float silu = gate[i] / (1.0f + attention::Exp(-gate[i]));
        judge[i] = RoundValue(round, RoundValue(round, silu) * up[i]);
      }
      SwiGlu(gate.data(), up.data(), n, round, gate.data());
      ExpectSameBits(gate, judge, round);
    }
  }
}

TEST(ReferenceTest, ResidualAndRoundEqualTheJudge) {
  Prng prng(4);
  for (const ComputeType round : kTypes) {
    for (const uint32_t n : kLengths) {
      std::vector<float> x = Random(n, 4.0f, prng);
      const std::vector<float> y = Random(n, 4.0f, prng);
      std::vector<float> judge(n);
      for (size_t i = 0; i < n; ++i) judge[i] = RoundValue(round, x[i] + y[i]);
      AddRow(y.data(), n, round, x.data());
      ExpectSameBits(x, judge, round);
    }
  }
}

// Every code of 16 bits and the values around it: ties, subnormals, overflow, NaN.
TEST(ReferenceTest, RoundingEqualsTheJudgeEverywhere) {
  std::vector<float> values;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const uint32_t bf16 = code << 16;
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(bf16 | low));
    }
    const float f16 = F16ToF32(static_cast<uint16_t>(code));
    values.push_back(f16);
    values.push_back(std::nextafter(f16, std::numeric_limits<float>::infinity()));
    values.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(f16) | 0x1000u));
  }
  for (const ComputeType round : kTypes) {
    std::vector<float> judge = values;
    for (float& value : judge) value = RoundValue(round, value);
    std::vector<float> got = values;
    RoundValues(static_cast<uint32_t>(got.size()), round, got.data());
    ExpectSameBits(got, judge, round);
  }
}

}  // namespace
}  // namespace quire::model

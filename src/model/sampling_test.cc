#include "model/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "attention/scalar.h"
#include "base/prng.h"

namespace quire::model {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SamplingTest, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(Greedy(std::vector<float>{1, 3, 2, 3}), 1);
  EXPECT_EQ(Greedy(std::vector<float>{-0.0f, 0.0f}), 0);
  EXPECT_EQ(Greedy(std::vector<float>{kNan, -5, kNan, -4}), 3);
  EXPECT_EQ(Greedy(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(Greedy(std::vector<float>{-kInf, kInf, kInf}), 1);
  EXPECT_EQ(Sampler({.temperature = 0, .seed = 5}).Next(std::vector<float>{1, 3, 2, 3}), 1);
}

// One after the other, as it says.
TEST(SamplingTest, GreedyOfManyIsTheFirstOfTheLargest) {
  Prng prng(3);
  for (const size_t count : {1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 3000u, 5000u}) {
    for (int round = 0; round < 60; ++round) {
      std::vector<float> logits(count);
      for (float& logit : logits) {
        logit = static_cast<float>(prng.NextBelow(round % 3 == 0 ? 4 : 100'000)) - 5.0f;
        if (prng.NextChance(round % 4 == 0 ? 2 : 1000)) logit = kNan;
        if (prng.NextChance(round % 5 == 0 ? 2 : 1000)) logit = -kInf;
      }
      size_t best = 0;
      for (size_t id = 1; id < count; ++id) {
        if (logits[id] > logits[best] || (std::isnan(logits[best]) && !std::isnan(logits[id]))) {
          best = id;
        }
      }
      ASSERT_EQ(Greedy(logits), static_cast<TokenId>(best)) << count << " " << round;
    }
  }
}

TEST(SamplingTest, SameSeedSameTokens) {
  const std::vector<float> logits = {0.1f, 0.2f, 0.3f, 0.0f, -1.0f};
  Sampler a({.temperature = 0.8f, .seed = 7});
  Sampler b({.temperature = 0.8f, .seed = 7});
  Sampler c({.temperature = 0.8f, .seed = 8});
  int differing = 0;
  for (int i = 0; i < 100; ++i) {
    const TokenId token = a.Next(logits);
    EXPECT_EQ(token, b.Next(logits));
    differing += token != c.Next(logits);
  }
  EXPECT_GT(differing, 0);
}

TEST(SamplingTest, MinPLeavesOutWhatIsLessLikelyThanItsShareOfTheLikeliest) {
  const std::vector<float> logits = {std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  const auto drawn = [&](const SamplingOptions& options) {
    Sampler sampler(options);
    std::set<TokenId> tokens;
    for (int i = 0; i < 400; ++i) tokens.insert(sampler.Next(logits));
    return tokens;
  };
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.4f}), (std::set<TokenId>{0, 1}));
  // At temperature 2 the shares are the roots: 0.71 and 0.41 of the likeliest.
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.4f}), (std::set<TokenId>{0, 1, 2}));
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.42f}), (std::set<TokenId>{0, 1}));
  EXPECT_EQ(drawn({.temperature = 2, .top_k = 1, .min_p = 0.1f}), std::set<TokenId>{0});
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 1}), std::set<TokenId>{0});
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 7}), std::set<TokenId>{0});
  EXPECT_EQ(drawn({.temperature = 1, .min_p = kNan}), (std::set<TokenId>{0, 1, 2}));
}

// The rule of docs/numerics.md written again, draw by draw.
TEST(SamplingTest, FollowsTheCumulativeSum) {
  const std::vector<float> logits = {1.5f, -2.0f, 0.25f, 1.0f, -90.0f, 0.0f};
  constexpr float kTemperature = 0.7f;
  Sampler sampler({.temperature = kTemperature, .seed = 42});
  Prng prng(42);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < 20'000; ++i) {
    const double u = prng.NextDouble();
    std::vector<double> sums;
    double sum = 0;
    for (const float logit : logits) {
      sum += attention::Exp(logit / kTemperature - 1.5f / kTemperature);
      sums.push_back(sum);
    }
    size_t expected = 0;
    while (!(sums[expected] > u * sum)) ++expected;
    const TokenId token = sampler.Next(logits);
    ASSERT_EQ(token, static_cast<TokenId>(expected));
    ++counts[expected];
  }
  EXPECT_EQ(counts[4], 0);
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / kTemperature);
  for (size_t id = 0; id < logits.size(); ++id) {
    EXPECT_NEAR(counts[id] / 20'000.0, std::exp(logits[id] / kTemperature) / total, 0.015);
  }
}

// The rules of docs/numerics.md written again, for a vocabulary of some size.
TokenId DrawnByTheRules(const SamplingOptions& options, const std::vector<float>& logits,
                        double u) {
  const float max = *std::ranges::max_element(logits) / options.temperature;
  std::vector<float> weights;
  for (const float logit : logits) {
    weights.push_back(attention::Exp(logit / options.temperature - max));
    if (weights.back() < options.min_p) weights.back() = 0.0f;
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto total = [&] { return std::accumulate(weights.begin(), weights.end(), 0.0); };
  if (options.top_k != 0) {
    for (size_t i = options.top_k; i < order.size(); ++i) weights[order[i]] = 0.0f;
  }
  if (options.top_p < 1.0f) {
    const double least = options.top_p * total();
    double sum = 0.0;
    for (const size_t id : order) {
      const bool keeps = sum < least;
      sum += weights[id];
      if (!keeps) weights[id] = 0.0f;
    }
  }
  const double threshold = u * total();
  double sum = 0.0;
  for (size_t id = 0; id < weights.size(); ++id) {
    sum += weights[id];
    if (sum > threshold) return static_cast<TokenId>(id);
  }
  return static_cast<TokenId>(order.front());
}

TEST(SamplingTest, ManyTokensFollowTheRules) {
  Prng prng(11);
  for (int round = 0; round < 300; ++round) {
    // From nearly one likely token to all alike, and many ties.
    const double width = std::array{0.01, 1.0, 10.0, 60.0}[round % 4];
    std::vector<float> logits(1 + prng.NextBelow(3000));
    for (float& logit : logits) {
      logit = static_cast<float>(width * static_cast<double>(prng.NextBelow(500)) / 500);
    }
    const SamplingOptions options{
        .temperature = std::array{0.3f, 1.0f, 2.5f}[round % 3],
        .seed = prng.Next64(),
        .top_k = std::array{0u, 1u, 40u, 5000u}[prng.NextBelow(4)],
        .top_p = std::array{1.0f, 0.999f, 0.9f, 0.5f, 1e-6f}[prng.NextBelow(5)],
        .min_p = std::array{0.0f, 0.05f}[prng.NextBelow(2)]};
    Sampler sampler(options);
    Prng draws(options.seed);
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(sampler.Next(logits), DrawnByTheRules(options, logits, draws.NextDouble()))
          << round << " " << options.top_k << " " << options.top_p;
    }
  }
}

// Ids drawn at least once in many draws.
std::vector<TokenId> Drawn(const SamplingOptions& options, const std::vector<float>& logits) {
  Sampler sampler(options);
  std::set<TokenId> ids;
  for (int i = 0; i < 5000; ++i) ids.insert(sampler.Next(logits));
  return {ids.begin(), ids.end()};
}

TEST(SamplingTest, TopKAndTopPKeepTheMostLikely) {
  // Shares 0.4, 0.3, 0.2, 0.1 of the ids 1, 3, 0, 2.
  const std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f),
                                     std::log(0.3f)};
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(Drawn({.temperature = 1}, logits), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(Drawn({.temperature = 1, .top_k = 2}, logits), (Ids{1, 3}));
  EXPECT_EQ(Drawn({.temperature = 1, .top_k = 1}, logits), Ids{1});
  EXPECT_EQ(Drawn({.temperature = 1, .top_k = 9}, logits), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(Drawn({.temperature = 1, .top_p = 0.65f}, logits), (Ids{1, 3}));
  EXPECT_EQ(Drawn({.temperature = 1, .top_p = 0.75f}, logits), (Ids{0, 1, 3}));
  EXPECT_EQ(Drawn({.temperature = 1, .top_p = 1e-9f}, logits), Ids{1});
  // Of the three most likely, 0.4 of 0.9 is more than 0.42.
  EXPECT_EQ(Drawn({.temperature = 1, .top_k = 3, .top_p = 0.42f}, logits), Ids{1});
  EXPECT_EQ(Drawn({.temperature = 1, .top_k = 2}, {1, 1, 1}), (Ids{0, 1}));  // ties: smaller ids
  EXPECT_EQ(Drawn({.temperature = 1, .top_k = 2, .top_p = 0.5f}, {kNan, 0, kNan}), Ids{1});
}

TEST(SamplingTest, OddLogitsStillGiveAToken) {
  Sampler sampler({.temperature = 1e-30f, .seed = 1});
  EXPECT_EQ(sampler.Next(std::vector<float>{1, 2, 3}), 2);
  Sampler warm({.temperature = 1.0f, .seed = 1});
  EXPECT_EQ(warm.Next(std::vector<float>{1, kInf, 3}), 1);
  EXPECT_EQ(warm.Next(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(warm.Next(std::vector<float>{kNan, 1.0f}), 1);
  EXPECT_EQ(warm.Next(std::vector<float>{-kInf, -kInf}), 0);
}

}  // namespace
}  // namespace quire::model

// What a cache of another size would have hit, said by the cache itself.
#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"
#include "cache/test_util.h"
#include "cache/verbs/hit_length.h"

namespace quire::cache {
namespace {

// Questions about documents, of which few are asked about often.
std::vector<TokenId> NextPrompt(Prng& prng, uint64_t number) {
  constexpr double kDocuments = 900;
  const double rank = std::pow(kDocuments, prng.NextDouble());  // Zipf's law, nearly
  const auto document = static_cast<uint64_t>(rank);
  Prng of_document(document);
  return Join(SomeTokens((2 + of_document.NextBelow(8)) * kBlock, document),
              SomeTokens(1 + prng.NextBelow(2 * kBlock), 10'000 + number));
}

struct Replayed {
  double hit_ratio = 0;
  TenantStats stats;
};

Replayed Replay(uint64_t slots) {
  TestCache t(slots);
  Prng prng(11);
  uint64_t asked = 0;
  uint64_t found = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const auto prompt = NextPrompt(prng, i);
    asked += ReusableBlocks(prompt.size(), kBlock);
    auto plan = t.Acquire(prompt);
    found += plan.resident_tokens() / kBlock;
    const auto sequence = Must(t.cache->Open(std::move(plan), {}));
    Must(t.model.Feed(*sequence, prompt));
  }
  const TenantStats stats = Must(t.cache->tenant_stats(kDefaultTenant));
  EXPECT_EQ(stats.reuse_lookup_blocks, asked);
  return {.hit_ratio = static_cast<double>(found) / static_cast<double>(asked), .stats = stats};
}

TEST(ReuseStats, EstimateWhatOtherSizesWouldHit) {
  constexpr uint64_t kSlots = 800;
  const Replayed present = Replay(kSlots);
  ASSERT_LT(present.stats.lru_estimates[0].hit_ratio,
            present.stats.lru_estimates[3].hit_ratio - 0.1)
      << "the size must matter here";
  for (const LruEstimate& estimate : present.stats.lru_estimates) {
    EXPECT_EQ(estimate.blocks, static_cast<uint64_t>(estimate.size * kSlots));
    const double real = estimate.size == 1 ? present.hit_ratio : Replay(estimate.blocks).hit_ratio;
    EXPECT_NEAR(estimate.hit_ratio, real, 0.03) << estimate.size << " of the present size";
  }
}

// Readings of one tenant are the same, whatever another one does.
TEST(ReuseStats, AreOfOneTenantAlone) {
  std::vector<std::string> readings;
  for (const uint64_t others : {0, 5}) {
    TestCache t(/*slots=*/60);
    const TenantId a = Must(t.cache->AddTenant({.name = "a", .quota_bytes = 20 * t.charge_bytes}));
    const TenantId b = Must(t.cache->AddTenant({.name = "b", .quota_bytes = 20 * t.charge_bytes}));
    const auto run = [&](TenantId tenant, std::span<const TokenId> prompt) {
      auto plan =
          Must(t.cache->Acquire({.tenant = tenant, .identity = &t.identity, .tokens = prompt}));
      const auto sequence = Must(t.cache->Open(std::move(plan), {}));
      Must(t.model.Feed(*sequence, prompt));
    };
    for (uint64_t i = 0; i < 200; ++i) {
      run(a, SomeTokens(5 * kBlock, i % 7));
      for (uint64_t j = 0; j < others; ++j) run(b, SomeTokens(3 * kBlock, i * others + j));
    }
    const TenantStats stats = Must(t.cache->tenant_stats(a));
    EXPECT_EQ(stats.reuse_lookup_blocks, 200u * 4) << "a prompt's last token is not looked up";
    EXPECT_GT(stats.lru_estimates[2].hit_ratio, 0.5);
    readings.push_back(ToJson(stats));
    Must(t.cache->Erase(a));
    EXPECT_EQ(Must(t.cache->tenant_stats(a)).reuse_lookup_blocks, 0u);
    EXPECT_EQ(Must(t.cache->tenant_stats(a)).lru_estimates[3].hit_ratio, 0.0);
  }
  EXPECT_EQ(readings[0], readings[1]);
}

TEST(ReuseStats, AForkAsksForNothing) {
  TestCache t(/*slots=*/60);
  const auto prompt = SomeTokens(5 * kBlock, 1);
  auto sequence = t.Run(prompt);
  auto fork = Must(sequence->Fork());
  fork.reset();
  EXPECT_EQ(Must(t.cache->tenant_stats(kDefaultTenant)).reuse_lookup_blocks, 0u);
  sequence.reset();
  EXPECT_EQ(Must(t.cache->tenant_stats(kDefaultTenant)).reuse_lookup_blocks, 4u);
  EXPECT_EQ(Must(t.cache->tenant_stats(kDefaultTenant)).lru_estimates[1].hit_ratio, 1.0)
      << "the fork had used them before";
}

}  // namespace
}  // namespace quire::cache

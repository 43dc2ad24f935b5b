#include "evict/return_shadow.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace quire::evict {
namespace {

constexpr uint64_t kCacheBlocks = 200 * ReturnShadow::kEvery;

uint64_t SampledKey(uint64_t number) { return (number + 1) * ReturnShadow::kEvery; }

ReturnFeatures Kind(bool returns) { return {1, returns ? 1.0F : -1.0F}; }

TEST(ReturnShadow, SamplesByKeyAlone) {
  EXPECT_FALSE(ReturnShadow::Samples(0)) << "names no block";
  Prng prng(3);
  uint64_t sampled = 0;
  for (int i = 0; i < 100'000; ++i) sampled += ReturnShadow::Samples(prng.Next64()) ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(sampled), 100'000.0 / ReturnShadow::kEvery, 400);
}

// Half of the blocks return once, after more blocks than fit; the others never do. Recency hits
// nothing, who learned which is which hits much.
TEST(ReturnShadow, TheModelLeadsWhereFeaturesTell) {
  ReturnShadow shadow;
  EXPECT_FALSE(shadow.model_leads());
  uint64_t now_ms = 0;
  for (uint64_t i = 0; i < 30'000; ++i) {
    now_ms += 10;
    shadow.Use(SampledKey(2 * i), Kind(false), now_ms, kCacheBlocks);
    shadow.Use(SampledKey(2 * i + 1), Kind(true), now_ms, kCacheBlocks);
    if (i >= 150) shadow.Use(SampledKey(2 * (i - 150) + 1), Kind(false), now_ms, kCacheBlocks);
  }
  EXPECT_TRUE(shadow.model_leads());
}

// What was used last is used next: nothing beats recency.
TEST(ReturnShadow, RecencyRulesWhereItIsBest) {
  ReturnShadow shadow;
  Prng prng(1);
  for (uint64_t i = 0; i < 30'000; ++i) {
    const uint64_t back = prng.NextBelow(1 + prng.NextBelow(250));
    shadow.Use(SampledKey(i / 4 - std::min(i / 4, back)), Kind(prng.NextChance(2)), i * 10,
               kCacheBlocks);
    ASSERT_FALSE(i > 10'000 && shadow.model_leads()) << "use " << i;
  }
}

TEST(ReturnShadow, ShrinksAndGrowsWithTheCache) {
  ReturnShadow shadow;
  Prng prng(2);
  for (uint64_t i = 0; i < 60'000; ++i) {
    const uint64_t blocks = 1 + prng.NextBelow(kCacheBlocks * 2);
    shadow.Use(SampledKey(prng.NextBelow(40'000)), Kind(prng.NextChance(2)), i, blocks);
  }
  EXPECT_GT(shadow.model().horizon_ms(), 0.0);
}

}  // namespace
}  // namespace quire::evict

#include "evict/return_shadow.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace quire::evict {
namespace {

constexpr uint64_t kWatchedMax = 16'384;
constexpr uint64_t kCacheBlocks = 200 * ReturnShadow::kEveryMost;

uint64_t SampledKey(uint64_t number) { return (number + 1) * ReturnShadow::kEveryMost; }

ReturnFeatures Kind(bool returns) { return {1, returns ? 1.0F : -1.0F}; }

TEST(ReturnShadow, SamplesByKeyAlone) {
  const ReturnShadow shadow;
  EXPECT_FALSE(shadow.Samples(0)) << "names no block";
  Prng prng(3);
  uint64_t sampled = 0;
  for (int i = 0; i < 100'000; ++i) sampled += shadow.Samples(prng.Next64()) ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(sampled), 100'000.0 / ReturnShadow::kEveryMost, 400);
}

// Half of the blocks return once, after more blocks than fit; the others never do. Recency hits
// nothing; a policy that learned which blocks return hits much.
class Returners {
 public:
  void Run(ReturnShadow& shadow, uint64_t steps, uint64_t cache_blocks) {
    for (const uint64_t end = step_ + steps; step_ < end; ++step_) {
      const uint64_t now_ms = step_ * 10;
      const auto use = [&](uint64_t number, bool returns) {
        shadow.Begin(cache_blocks, /*is_full=*/true);
        shadow.Use(SampledKey(number), Kind(returns), now_ms, cache_blocks, kWatchedMax);
      };
      use(2 * step_, false);
      use(2 * step_ + 1, true);
      if (step_ >= 150) use(2 * (step_ - 150) + 1, false);
    }
  }

 private:
  uint64_t step_ = 0;
};

TEST(ReturnShadow, TheModelLeadsWhereFeaturesTell) {
  ReturnShadow shadow;
  EXPECT_FALSE(shadow.model_leads());
  Returners().Run(shadow, 30'000, kCacheBlocks);
  EXPECT_TRUE(shadow.model_leads());
  // They return after 1.5 s, by the table of ages give or take a quarter of a doubling.
  EXPECT_GT(shadow.model().horizon_ms(), 1500.0);
  EXPECT_LT(shadow.model().horizon_ms(), 1500.0 * 2);
}

// The most recent block is used next: nothing beats recency.
TEST(ReturnShadow, RecencyRulesWhereItIsBest) {
  ReturnShadow shadow;
  Prng prng(1);
  for (uint64_t i = 0; i < 30'000; ++i) {
    const uint64_t back = prng.NextBelow(1 + prng.NextBelow(250));
    shadow.Begin(kCacheBlocks, /*is_full=*/true);
    shadow.Use(SampledKey(i / 4 - std::min(i / 4, back)), Kind(prng.NextChance(2)), i * 10,
               kCacheBlocks, kWatchedMax);
    ASSERT_FALSE(i > 10'000 && shadow.model_leads()) << "use " << i;
  }
}

// Blocks that fit into the larger cache need no model; in the smaller one they do.
TEST(ReturnShadow, ShrinksAndGrowsWithTheCache) {
  ReturnShadow shadow;
  Returners returners;
  for (int round = 0; round < 2; ++round) {
    returners.Run(shadow, 20'000, 10 * kCacheBlocks);
    EXPECT_FALSE(shadow.model_leads()) << "large, round " << round;
    returners.Run(shadow, 20'000, kCacheBlocks);
    EXPECT_TRUE(shadow.model_leads()) << "small, round " << round;
  }
}

TEST(ReturnShadow, WatchesNoMoreThanItIsPaidFor) {
  ReturnShadow shadow;
  Prng prng(2);
  for (uint64_t i = 0; i < 20'000; ++i) {
    const uint64_t watched_max = i < 10'000 ? 700 : 60;
    shadow.Begin(kCacheBlocks, /*is_full=*/true);
    shadow.Use(SampledKey(prng.NextBelow(4000)), Kind(prng.NextChance(2)), i, kCacheBlocks,
               watched_max);
    ASSERT_LE(shadow.watched(), watched_max);
    if (i < 9999) continue;
    ASSERT_EQ(shadow.watched(), watched_max);
  }
}

// In a small cache more blocks are sampled, so that those in miniature hold some.
TEST(ReturnShadow, SamplesMoreInASmallCache) {
  ReturnShadow shadow;
  EXPECT_FALSE(shadow.Samples(1));
  shadow.Use(SampledKey(5), Kind(true), 0, 100, kWatchedMax);
  shadow.Begin(/*cache_blocks=*/100, /*is_full=*/false);
  EXPECT_FALSE(shadow.Samples(1)) << "it may still grow";
  for (int i = 0; i < 10; ++i) shadow.Begin(/*cache_blocks=*/100, /*is_full=*/true);
  EXPECT_TRUE(shadow.Samples(2));
  EXPECT_FALSE(shadow.Samples(1)) << "50 of 100 are enough";
  shadow.Use(2, Kind(true), 0, 100, kWatchedMax);
  EXPECT_EQ(shadow.watched(), 2u);
  for (int i = 0; i < 10; ++i) shadow.Begin(kCacheBlocks, /*is_full=*/true);
  EXPECT_FALSE(shadow.Samples(2));
  EXPECT_EQ(shadow.watched(), 1u) << "what is sampled no more is not watched";
}

}  // namespace
}  // namespace quire::evict

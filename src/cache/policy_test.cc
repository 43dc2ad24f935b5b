// The cache under every policy: it shares, evicts under pressure, and can be emptied.
#include <gtest/gtest.h>

#include "base/prng.h"
#include "cache/test_util.h"
#include "evict/policies.h"

namespace quire::cache {
namespace {

class CachePolicies : public testing::TestWithParam<std::string_view> {};

TEST_P(CachePolicies, ShareAndEvictUnderPressure) {
  TestCache t(/*slots=*/20, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), /*slots_max=*/0,
              {.policy = std::string(GetParam())});
  Prng prng(8);
  uint64_t found = 0;
  for (int i = 0; i < 300; ++i) {
    const auto stem = SomeTokens(48, prng.NextBelow(4));
    const auto prompt = Join(stem, SomeTokens(1 + prng.NextBelow(80), 100 + prng.NextBelow(30)));
    found += t.Resident(prompt);
    const auto sequence = t.Run(prompt);
    ASSERT_EQ(t.model.Differs(*sequence, prompt), "") << "request " << i;
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(t.cache->stats().evicted_total, 100u);
  const uint64_t blocks = t.cache->stats().evictable_blocks;
  EXPECT_EQ(t.cache->Evict(1000), blocks);
  EXPECT_EQ(t.slots_used(), 0u);
}

// A policy that goes by the length of prompts gets it from the sequences that end.
TEST(CachePolicy, HearsOfRequests) {
  for (const bool by_length : {true, false}) {
    TestCache t(/*slots=*/40, SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                /*slots_max=*/0, {.policy = by_length ? "token_limit" : "lru"});
    const auto brief = SomeTokens(2 * kBlock + 1, 1);
    const auto lengthy = SomeTokens(8 * kBlock + 1, 2);
    t.Run(brief);
    t.Run(lengthy);
    EXPECT_EQ(t.cache->Evict(3), 3u);
    // The brief one is older, the lengthy one takes more.
    EXPECT_EQ(t.Resident(brief), by_length ? 2 * kBlock : 0);
    EXPECT_EQ(t.Resident(lengthy), (by_length ? 5 : 7) * kBlock);
  }
}

TestCache CacheByLength() {
  return TestCache(/*slots=*/40, SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                   /*slots_max=*/0, {.policy = "token_limit"});
}

// A dropped plan used its own prompt and nothing of the request before it.
TEST(CachePolicy, ADroppedPlanIsARequestOfItsOwn) {
  TestCache t = CacheByLength();
  const auto brief = SomeTokens(2 * kBlock + 1, 1);
  const auto lengthy = SomeTokens(8 * kBlock + 1, 2);
  t.Run(brief);
  t.Run(lengthy);
  {
    const auto asked = Join(std::span(brief).first(2 * kBlock), SomeTokens(12 * kBlock, 3));
    EXPECT_EQ(t.Acquire(asked).resident_tokens(), 2 * kBlock);
  }
  EXPECT_EQ(t.cache->Evict(2), 2u);
  EXPECT_EQ(t.Resident(lengthy), 8 * kBlock);
  EXPECT_EQ(t.Resident(brief), 0u) << "the longest prompt was the plan's";
}

// A view that is the last holder of its blocks does not make them those of the request before.
TEST(CachePolicy, BlocksThatAViewReleasesBelongToNoRequest) {
  TestCache t = CacheByLength();
  const auto brief = SomeTokens(2 * kBlock + 1, 1);
  const auto lengthy = SomeTokens(8 * kBlock + 1, 2);
  auto sequence = t.Run(brief);
  {
    const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
    sequence.reset();
    t.Run(lengthy);
  }
  t.Run(SomeTokens(3 * kBlock + 1, 3));
  EXPECT_EQ(t.cache->Evict(11), 11u);
  EXPECT_EQ(t.Resident(brief), 2 * kBlock);
}

INSTANTIATE_TEST_SUITE_P(All, CachePolicies, testing::ValuesIn(evict::PolicyNames()),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace quire::cache

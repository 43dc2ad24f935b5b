// What an operator moves from memory to the store: nothing that is in use, nothing that the store
// has not, and what left is found there.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/sync_point.h"
#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kDemotedTokens = uint64_t{10} * kBlock;

class DemoteTest : public testing::Test {
 protected:
  std::unique_ptr<TestCache> Make(const NumericProfile& profile) {
    CacheOptions more;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    return std::make_unique<TestCache>(64, SmallGeometry(), profile, 0, more);
  }
  std::unique_ptr<TestCache> Make() { return Make(NumericProfile::Uniform(Codec::kF16)); }
  static Result<uint64_t> Demote(TestCache& test, const std::vector<TokenId>& prompt) {
    return test.cache->Demote({.identity = &test.identity, .tokens = prompt});
  }
  static uint64_t Loadable(TestCache& test, const std::vector<TokenId>& prompt) {
    return test.Acquire(prompt).loadable_tokens();
  }

  TestStore store_;
  const std::vector<TokenId> prompt_ = SomeTokens(kDemotedTokens + 5, 1);
};

TEST_F(DemoteTest, WhatMemoryHasLeavesItForTheStore) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  EXPECT_EQ(test->slots_used(), 10);
  EXPECT_EQ(Must(Demote(*test, prompt_)), 10);
  EXPECT_EQ(test->slots_used(), 0);
  EXPECT_EQ(test->cache->stats().evicted_unwritten_total, 0);
  EXPECT_EQ(Loadable(*test, prompt_), kDemotedTokens);
  EXPECT_EQ(RunThrough(*test, prompt_).reused, kDemotedTokens);
  EXPECT_EQ(test->cache->stats().loaded_total, 10);
  EXPECT_EQ(Must(Demote(*test, SomeTokens(kDemotedTokens, 9))), 0);  // there is no such text
}

TEST_F(DemoteTest, OnlyWholeBlocksOfTheTextThatIsNamedGo) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  const std::vector<TokenId> front(prompt_.begin(), prompt_.begin() + 4 * kBlock + 3);
  EXPECT_EQ(Must(Demote(*test, front)), 0);  // what comes after them is in memory
  std::vector<TokenId> branch(front.begin(), front.begin() + 4 * kBlock);
  const std::vector<TokenId> rest = SomeTokens(3 * kBlock + 1, 2);
  branch.insert(branch.end(), rest.begin(), rest.end());
  RunThrough(*test, branch);
  EXPECT_EQ(Must(Demote(*test, branch)), 3);
  EXPECT_EQ(test->Resident(prompt_), kDemotedTokens);
  EXPECT_EQ(Must(Demote(*test, prompt_)), 10);
}

TEST_F(DemoteTest, WhatIsInUseOrPinnedStays) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  {
    const Plan plan = test->Acquire(prompt_);
    EXPECT_EQ(Must(Demote(*test, prompt_)), 0);
  }
  const std::vector<TokenId> front(prompt_.begin(), prompt_.begin() + 6 * kBlock);
  ASSERT_TRUE(test->cache->Pin({.identity = &test->identity, .tokens = front}, 0));
  EXPECT_EQ(Must(Demote(*test, prompt_)), 4);
  EXPECT_EQ(test->Resident(prompt_), 6 * kBlock);
  ASSERT_TRUE(test->cache->Unpin({.identity = &test->identity, .tokens = front}));
  EXPECT_EQ(Must(Demote(*test, prompt_)), 6);
}

// A request begins to use it while it is made durable.
TEST_F(DemoteTest, WhatComesIntoUseMeanwhileStays) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  std::optional<Plan> plan;
  const SyncPointHandler handler([&](std::string_view name) {
    if (name == "demote: what the store takes is durable") plan = test->Acquire(prompt_);
  });
  EXPECT_EQ(Must(Demote(*test, prompt_)), 0);
  EXPECT_EQ(plan->resident_tokens(), kDemotedTokens);
}

TEST_F(DemoteTest, TwinsGoToo) {
  const auto test = Make(EncodedInt8(2 * kBlock));
  const uint64_t reused = RunThrough(*test, prompt_).reused;
  EXPECT_EQ(reused, 0);
  EXPECT_EQ(Must(Demote(*test, prompt_)), 10);
  EXPECT_EQ(test->slots_used(), 0);
  EXPECT_EQ(RunThrough(*test, prompt_).reused, kDemotedTokens);
}

TEST_F(DemoteTest, WithoutAStoreOrWhereItTakesNothingNothingGoes) {
  TestCache alone(64);
  const auto refused = Demote(alone, prompt_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  const auto test = Make();
  store_.files.set_rates({.write_error = 1});
  RunThrough(*test, prompt_);
  const auto failed = Demote(*test, prompt_);
  ASSERT_FALSE(failed);
  EXPECT_EQ(test->Resident(prompt_), kDemotedTokens);
  store_.files.set_rates({});
  store_.clock.Advance(60'000'000);  // until the place is tried again
  EXPECT_EQ(Must(Demote(*test, prompt_)), 10);
}

}  // namespace
}  // namespace quire::cache

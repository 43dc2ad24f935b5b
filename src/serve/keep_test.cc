#include "serve/keep.h"

#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::serve {
namespace {

using Blocks = std::vector<uint64_t>;

TEST(BlocksToKeepTest, SinksTheEndAndTheHeaviest) {
  const std::vector<double> importance = {0, 1, 5, 0, 7, 2, 0, 0, 0, 0};
  const KeepOptions options{.share = 0.5, .observe_tokens = 32};
  EXPECT_EQ(BlocksToKeep(options, 10, {}, importance), (Blocks{0, 2, 4, 8, 9}));
}

TEST(BlocksToKeepTest, OfEqualBlocksTheLater) {
  const KeepOptions options{.share = 0.3, .by = KeepBy::kAccumulated};
  EXPECT_EQ(BlocksToKeep(options, 10, {}, std::vector<double>(10, 1.0)), (Blocks{0, 8, 9}));
}

TEST(BlocksToKeepTest, RecentIsAWindowWithSinks) {
  const KeepOptions options{.share = 0.4, .by = KeepBy::kRecent, .sink_blocks = 2};
  EXPECT_EQ(BlocksToKeep(options, 10, {}, std::vector<double>{0, 0, 0, 9}), (Blocks{0, 1, 8, 9}));
}

TEST(BlocksToKeepTest, WhatIsReadOpenStays) {
  const NumericProfile profile{.residual_tokens = 40};
  const KeepOptions options{.share = 0.1, .by = KeepBy::kAccumulated};
  EXPECT_EQ(BlocksToKeep(options, 10, profile, std::vector<double>{0, 0, 0, 9}),
            (Blocks{0, 7, 8, 9}));
  EXPECT_EQ(BlocksToKeep(options, 2, profile, {}), (Blocks{0, 1}));
}

// Where the share is less than the end of the prompt, its last blocks stay, whatever others weigh.
TEST(BlocksToKeepTest, TheEndStaysFromItsLastBlockOn) {
  const std::vector<double> importance = {9, 1, 8, 2};
  const NumericProfile profile{.residual_tokens = 16};
  EXPECT_EQ(BlocksToKeep({.share = 0.25, .observe_tokens = 48}, 4, profile, importance),
            (Blocks{0, 3}));
  EXPECT_EQ(BlocksToKeep({.share = 0.5, .observe_tokens = 48}, 4, {}, importance), (Blocks{0, 3}));
}

TEST(BlocksToKeepTest, WhatIsBehindTheImportanceIsNotRead) {
  const std::vector<double> longer = {0, 2, 1, 0, 99, 99};
  const KeepOptions options{.share = 0.4, .by = KeepBy::kAccumulated};
  EXPECT_EQ(BlocksToKeep(options, 10, {}, std::span(longer).first(4)), (Blocks{0, 1, 2, 9}));
}

TEST(BlocksToKeepTest, AttentionIsObservedFromWhereItIsAsked) {
  const KeepOptions observed{.observe_tokens = 32};
  EXPECT_EQ(ObservedFrom(observed, 100), 68u);
  EXPECT_EQ(ObservedFrom(observed, 32), 0u);
  EXPECT_EQ(ObservedFrom(observed, 10), 0u);
  EXPECT_EQ(ObservedFrom({.by = KeepBy::kAccumulated}, 100), 0u);
  EXPECT_EQ(ObservedFrom({}, 100), 68u);
  EXPECT_EQ(KeepByName(KeepBy::kObserved), "observed");
  EXPECT_EQ(KeepByName(KeepBy::kAccumulated), "accumulated");
  EXPECT_EQ(KeepByName(KeepBy::kRecent), "recent");
  EXPECT_EQ(KeepByName(static_cast<KeepBy>(0)), "unknown");
}

TEST(BlocksToKeepTest, EndsOfTheRange) {
  EXPECT_EQ(BlocksToKeep({.share = 1.0}, 3, {}, {}), (Blocks{0, 1, 2}));
  EXPECT_EQ(BlocksToKeep({.share = 0.01}, 3, {}, {}), (Blocks{0}));
  EXPECT_EQ(BlocksToKeep({.share = 0.5}, 0, {}, {}), Blocks{});
}

class KeptBlocksTest : public testing::Test {
 protected:
  static constexpr uint32_t kBlock = cache::kBlock;

  cache::TestCache test_{16};
  const std::vector<TokenId> prompt_ = cache::SomeTokens(6 * kBlock + 3, 1);
  std::unique_ptr<Sequence> whole_ = test_.Run(prompt_, {.publish = false});
};

TEST_F(KeptBlocksTest, GoesOnWithTheChosenBlocks) {
  const KeepOptions options{.share = 0.5, .by = KeepBy::kRecent};
  KeptBlocks kept(options);
  kept.Begin(prompt_.size());
  EXPECT_EQ(kept.observer(), nullptr);  // nothing needs to look
  EXPECT_EQ(kept.dropped_tokens(), 0u);
  const auto selected = kept.Select(*whole_, test_.cache->options().profile);
  ASSERT_TRUE(selected.has_value());
  EXPECT_EQ((*selected)->length(), 3 * kBlock + 3);
  EXPECT_EQ((*selected)->dropped_tokens(), 3u * kBlock);
  EXPECT_EQ(kept.dropped_tokens(), 3u * kBlock);
}

TEST_F(KeptBlocksTest, NobodyLooksWhereAllIsKeptOrAllWasChosen) {
  const KeepOptions all{};
  KeptBlocks whole(all);
  whole.Begin(prompt_.size());
  EXPECT_EQ(whole.observer(), nullptr);
  const KeepOptions options{.share = 0.5};
  KeptBlocks kept(options);
  EXPECT_EQ(kept.observer(), nullptr);
  kept.Begin(prompt_.size());
  EXPECT_NE(kept.observer(), nullptr);
  ASSERT_TRUE(kept.Select(*whole_, test_.cache->options().profile).has_value());
  EXPECT_EQ(kept.observer(), nullptr);
  kept.Begin(prompt_.size());  // preempted, and read again
  EXPECT_EQ(kept.observer(), nullptr);
}

TEST_F(KeptBlocksTest, WhatAStepThatFailedHasSeenIsForgotten) {
  const KeepOptions options{.share = 0.5};
  KeptBlocks kept(options);
  auto before = kept.ObservedSoFar();
  EXPECT_FALSE(before.has_value());
  kept.Begin(prompt_.size());
  kept.ForgetObservedSince(std::move(before));
  EXPECT_EQ(kept.observer(), nullptr);
  kept.Begin(prompt_.size());
  kept.ForgetObservedSince(kept.ObservedSoFar());
  EXPECT_NE(kept.observer(), nullptr);
}

}  // namespace
}  // namespace quire::serve

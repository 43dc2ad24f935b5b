// When there is no room the request chooses what happens. SPEC M9, S6.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

/// Ten slots: four have cached blocks without leases, three are in use.
struct OnFullWorld {
  OnFullWorld() : cache(10) {
    cache.Run(cached).reset();
    user = cache.Run(used);
  }

  TestCache cache;
  std::vector<TokenId> cached = SomeTokens(4 * kBlock + 1, 1);
  std::vector<TokenId> used = SomeTokens(3 * kBlock, 2);
  std::unique_ptr<Sequence> user;
};

TEST(OnFull, RejectEvictsUnleasedBlocksAndThenRefuses) {
  OnFullWorld world;
  const auto refused = world.cache.TryOpen(SomeTokens(8 * kBlock, 3));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace) << "it may fit later";
  EXPECT_THAT(refused.error().message, HasSubstr("0 shared and 8 own blocks"));
  EXPECT_EQ(world.cache.Resident(world.cached), 4u * kBlock) << "nothing went for nothing";
  const auto admitted = world.cache.Open(SomeTokens(7 * kBlock, 3));
  EXPECT_EQ(world.cache.cache->stats().evicted_total, 4u);
}

TEST(OnFull, NoEvictTakesFreeRoomOnly) {
  OnFullWorld world;
  const SequenceOptions options{.on_full = OnFull::kNoEvict};
  const std::string before = world.cache.Snapshot();
  const auto refused = world.cache.TryOpen(SomeTokens(4 * kBlock, 3), options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("3 free of 10"));
  const auto admitted = world.cache.Open(SomeTokens(3 * kBlock, 3), options);
  EXPECT_EQ(admitted->Reserve(4 * kBlock).error().code, ErrorCode::kNoSpace) << "later too";
  EXPECT_EQ(world.cache.Resident(world.cached), 4u * kBlock);
  EXPECT_EQ(world.cache.cache->stats().evicted_total, 0u);
}

TEST(OnFull, HaltKeepsTheSequenceUsable) {
  OnFullWorld world;
  const auto prompt = SomeTokens(6 * kBlock, 3);
  const auto sequence =
      world.cache.Run(prompt, {.reserve_tokens = 9 * kBlock, .on_full = OnFull::kHalt});
  Must(sequence->Reserve(7 * kBlock));
  EXPECT_EQ(sequence->Reserve(8 * kBlock).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(world.cache.model.Differs(*sequence, prompt), "");
  world.user.reset();
  Must(sequence->Reserve(8 * kBlock));
}

TEST(OnFull, FewerTokensAreAdmittedAndKept) {
  OnFullWorld world;
  const auto prompt = SomeTokens(2 * kBlock + 1, 3);
  const auto sequence =
      world.cache.Run(prompt, {.reserve_tokens = 20 * kBlock, .on_full = OnFull::kFewer});
  const SequenceStats stats = sequence->stats();
  EXPECT_EQ(stats.tokens_max, 7u * kBlock) << "all that is free or evictable";
  EXPECT_EQ(stats.tokens_reserved, 7u * kBlock);
  auto all = Join(prompt, SomeTokens(5 * kBlock - 1, 4));
  Must(world.cache.model.Feed(*sequence, all));
  // Room that comes later does not change the answer.
  world.user.reset();
  const auto refused = sequence->Reserve(7 * kBlock + 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("admitted with 112"));
  EXPECT_EQ(world.cache.model.Differs(*sequence, all), "");

  // A request for less than the available room gets it.
  const auto small =
      world.cache.Open(SomeTokens(5, 5), {.reserve_tokens = 20, .on_full = OnFull::kFewer});
  EXPECT_EQ(small->stats().tokens_max, 20u);
}

TEST(OnFull, FewerStillNeedsThePrompt) {
  OnFullWorld world;
  const auto refused =
      world.cache.TryOpen(SomeTokens(7 * kBlock + 1, 3), {.on_full = OnFull::kFewer});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(world.cache.Resident(world.cached), 4u * kBlock);
  const auto never =
      world.cache.TryOpen(SomeTokens(10 * kBlock + 1, 3), {.on_full = OnFull::kFewer});
  EXPECT_EQ(never.error().code, ErrorCode::kTooLarge);
}

TEST(OnFull, FewerCountsSharedBlocks) {
  OnFullWorld world;
  const auto sequence =
      world.cache.Open(world.cached, {.reserve_tokens = 20 * kBlock, .on_full = OnFull::kFewer});
  // Four are leased now, three are free.
  EXPECT_EQ(sequence->stats().blocks_shared, 4u);
  EXPECT_EQ(sequence->stats().blocks_own, 3u);
  EXPECT_EQ(sequence->stats().tokens_max, 7u * kBlock);
}

}  // namespace
}  // namespace quire::cache

// Rollback, Fork, Reset, and what other sequences see of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

TEST(Rollback, DropsUncommittedRowsOfEveryLayer) {
  TestCache cache(8);
  const auto tokens = SomeTokens(20, 1);
  const auto sequence = cache.Run(tokens);
  const auto guess = Join(tokens, SomeTokens(6, 2));
  Must(cache.model.AppendLayer(*sequence, 0, guess));
  Must(cache.model.AppendLayer(*sequence, 1, std::span(guess).first(23)));
  Must(sequence->Rollback(24));  // two of layer 0 go, layer 1 is not there yet
  EXPECT_EQ(sequence->cursor(0), 24u);
  EXPECT_EQ(sequence->cursor(1), 23u);
  Must(sequence->Rollback(20));
  EXPECT_EQ(sequence->cursor(0), 20u);
  EXPECT_EQ(sequence->cursor(1), 20u);
  EXPECT_EQ(sequence->length(), 20u);
  const auto other = Join(tokens, SomeTokens(20, 3));
  Must(cache.model.Feed(*sequence, other));
  EXPECT_EQ(cache.model.Differs(*sequence, other), "");
}

TEST(Rollback, ToEveryPositionThenOnDifferently) {
  const auto tokens = SomeTokens(50, 1);
  for (const bool publish : {true, false}) {
    for (uint64_t position = 0; position <= tokens.size(); ++position) {
      TestCache cache(12);
      const auto witness = cache.Run(tokens, {.publish = publish});
      const auto sequence = cache.Run(tokens, {.publish = publish});
      Must(sequence->Rollback(position));
      EXPECT_EQ(sequence->length(), position);
      EXPECT_EQ(cache.model.Differs(*sequence, std::span(tokens).first(position)), "");
      const auto other = Join(std::span(tokens).first(position), SomeTokens(20, 2));
      Must(cache.model.Feed(*sequence, other));
      EXPECT_EQ(cache.model.Differs(*sequence, other), "") << position;
      EXPECT_EQ(cache.model.Differs(*witness, tokens), "") << position;
      EXPECT_EQ(cache.Resident(Join(tokens, tokens)), publish ? 48u : 0u);
    }
  }
}

TEST(Rollback, KeepsItsRoomAndLetsSharedBlocksGo) {
  TestCache cache(8);
  const auto tokens = SomeTokens(50, 1);
  const auto sequence = cache.Run(tokens, {.reserve_tokens = 6 * kBlock});
  EXPECT_EQ(cache.slots_used(), 6u);
  Must(sequence->Rollback(kBlock));
  EXPECT_EQ(sequence->stats().blocks_shared, 1u);
  EXPECT_EQ(sequence->stats().blocks_own, 3u);
  EXPECT_EQ(cache.cache->stats().evictable_blocks, 2u);
  EXPECT_EQ(cache.slots_used(), 6u);
  Must(sequence->Rollback(0));
  EXPECT_EQ(cache.cache->stats().evictable_blocks, 3u);
  EXPECT_EQ(cache.cache->Evict(9), 3u);
  EXPECT_EQ(cache.slots_used(), 3u);
}

TEST(Rollback, RefusesToGoForward) {
  TestCache cache(8);
  const auto tokens = SomeTokens(20, 1);
  const auto sequence = cache.Run(tokens);
  const std::string before = cache.Snapshot();
  const auto refused = sequence->Rollback(21);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("21"));
  Must(sequence->Rollback(20));
  EXPECT_EQ(cache.Snapshot(), before);
}

TEST(Rollback, WithoutRoomForTheCopyChangesNothing) {
  TestCache cache(2);
  const auto tokens = SomeTokens(2 * kBlock, 1);
  const auto sequence = cache.Run(tokens);
  const auto snapshot = cache.Snapshot();
  const auto refused = sequence->Rollback(kBlock + 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache.Snapshot(), snapshot);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
  Must(sequence->Rollback(kBlock));
  Must(cache.model.Feed(*sequence, std::span(tokens).first(kBlock)));
}

// A view shows the tail block and must not change; no row was dropped, so nothing needs a copy.
TEST(Rollback, ToWhereItStandsNeedsNoRoom) {
  TestCache cache(1);
  const auto tokens = SomeTokens(5, 1);
  const auto sequence = cache.Run(tokens);
  const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  Must(sequence->Rollback(5));
  EXPECT_FALSE(sequence->Rollback(4).has_value());
}

TEST(Fork, SharesWholeBlocksAndCopiesTheTail) {
  for (const bool publish : {true, false}) {
    TestCache cache(12);
    const auto tokens = SomeTokens(2 * kBlock + 5, 1);
    auto parent = cache.Run(tokens, {.publish = publish});
    Must(cache.model.AppendLayer(*parent, 0, Join(tokens, SomeTokens(2, 9))));  // not committed
    auto child = Must(parent->Fork());
    EXPECT_NE(child->id(), parent->id());
    EXPECT_EQ(cache.slots_used(), 4u);
    EXPECT_EQ(child->cursor(0), tokens.size());
    EXPECT_EQ(cache.model.Differs(*child, tokens), "");
    Must(parent->Rollback(tokens.size()));

    const auto left = Join(tokens, SomeTokens(30, 2));
    const auto right = Join(tokens, SomeTokens(30, 3));
    Must(cache.model.Feed(*parent, left));
    Must(cache.model.Feed(*child, right));
    EXPECT_EQ(cache.model.Differs(*parent, left), "");
    EXPECT_EQ(cache.model.Differs(*child, right), "");
    // Back into the middle of a shared block.
    Must(child->Rollback(20));
    const auto third = Join(std::span(tokens).first(20), SomeTokens(20, 4));
    Must(cache.model.Feed(*child, third));
    EXPECT_EQ(cache.model.Differs(*child, third), "");
    EXPECT_EQ(cache.model.Differs(*parent, left), "");
    parent.reset();
    EXPECT_EQ(cache.model.Differs(*child, third), "");
    child.reset();
    cache.cache->Evict(100);
    EXPECT_EQ(cache.slots_used(), 0u);
  }
}

TEST(Fork, AtABlockBoundaryNeedsNoRoom) {
  TestCache cache(2);
  const auto tokens = SomeTokens(2 * kBlock, 1);
  const auto parent = cache.Run(tokens);
  const auto child = Must(parent->Fork());
  EXPECT_EQ(cache.slots_used(), 2u);
  EXPECT_EQ(cache.model.Differs(*child, tokens), "");
  const std::string before = cache.Snapshot();
  const auto full = cache.model.Feed(*child, Join(tokens, tokens));
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(cache.Snapshot(), before);
}

TEST(Fork, WithoutRoomForTheTailChangesNothing) {
  TestCache cache(2);
  const auto tokens = SomeTokens(kBlock + 1, 1);
  const auto parent = cache.Run(tokens);
  const std::string before = cache.Snapshot();
  const auto refused = parent->Fork();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache.Snapshot(), before);
}

TEST(Fork, OfNothingIsNothing) {
  TestCache cache(2);
  const auto parent = cache.Open(SomeTokens(3, 1));
  const auto child = Must(parent->Fork());
  EXPECT_EQ(child->length(), 0u);
  EXPECT_EQ(cache.slots_used(), 1u);
  Must(cache.model.Feed(*child, SomeTokens(3, 1)));
}

TEST(Reset, ReturnsEveryByteAndStartsAgain) {
  TestCache cache(8);
  const auto tokens = SomeTokens(50, 1);
  const auto sequence = cache.Run(tokens, {.reserve_tokens = 100, .publish = false});
  EXPECT_EQ(cache.slots_used(), 7u);
  sequence->Reset();
  EXPECT_EQ(cache.slots_used(), 0u);
  EXPECT_EQ(SlotCharges(cache.cache->stats()), 0u) << "but for the sequence itself";
  EXPECT_EQ(sequence->length(), 0u);
  EXPECT_EQ(sequence->cursor(1), 0u);
  EXPECT_EQ(ToJson(sequence->stats()), ToJson(SequenceStats{.tokens_max = 1 << 20}));
  sequence->Reset();
  const auto other = SomeTokens(20, 2);
  Must(cache.model.Feed(*sequence, other));
  EXPECT_EQ(cache.model.Differs(*sequence, other), "");
}

TEST(Reset, LeavesPublishedBlocksToOthers) {
  TestCache cache(8);
  const auto tokens = SomeTokens(50, 1);
  const auto sequence = cache.Run(tokens);
  sequence->Reset();
  EXPECT_EQ(cache.slots_used(), 3u);
  EXPECT_EQ(cache.cache->stats().evictable_blocks, 3u);
  EXPECT_EQ(cache.Resident(tokens), 48u);
  // The tokens that it computes again are found again.
  Must(cache.model.Feed(*sequence, tokens));
  EXPECT_EQ(cache.cache->stats().deduplicated_total, 3u);
}

}  // namespace
}  // namespace quire::cache

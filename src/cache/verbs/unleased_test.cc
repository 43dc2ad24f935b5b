// Views that pin nothing: they show the same bytes as before, or fail. SPEC M8.
#include <gtest/gtest.h>

#include "cache/sequence/view_test_util.h"
#include "cache/state/touched_records.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

struct Unleased : ::testing::Test {
  // Of V in layer 1; remembers what it shows.
  UnleasedView Take(const Sequence& sequence) {
    const BlockListView view = Must(sequence.View(1, StreamRole::kValue));
    shown = ShownBy(view);
    return view.Unleased();
  }
  void ExpectShows(const UnleasedView& view) {
    const auto pinned = view.Pin();
    ASSERT_TRUE(pinned.has_value()) << pinned.error().message;
    EXPECT_EQ(ShownBy(*pinned), shown);
  }
  static void ExpectGone(const UnleasedView& view) {
    const auto pinned = view.Pin();
    ASSERT_FALSE(pinned.has_value());
    EXPECT_EQ(pinned.error().code, ErrorCode::kNotFound);
  }

  TestCache cache{8};
  std::vector<TokenId> tokens = SomeTokens(2 * kBlock + 5, 1);
  std::vector<std::byte> shown;
};

TEST_F(Unleased, PinsAgainAndLetsGo) {
  auto sequence = cache.Run(tokens);
  const UnleasedView view = Take(*sequence);
  ExpectShows(view);
  {
    const auto pinned = view.Pin();
    ASSERT_TRUE(pinned.has_value());
    sequence.reset();
    EXPECT_EQ(cache.cache->Evict(10), 0u);
    EXPECT_EQ(cache.slots_used(), 3u);
    ExpectShows(view);
  }
  ExpectGone(view);  // with the private tail
  EXPECT_EQ(cache.slots_used(), 2u);
}

TEST_F(Unleased, OfCachedBlocksLivesAsLongAsTheyAreCached) {
  tokens.resize(2 * kBlock);
  auto sequence = cache.Run(tokens);
  const UnleasedView view = Take(*sequence);
  sequence.reset();
  ExpectShows(view);
  EXPECT_EQ(cache.cache->Evict(1), 1u);
  ExpectGone(view);
}

// Blocks that a failed view looked at do not become more recent, however many they are.
TEST_F(Unleased, OfBlocksThatWentNothingBecomesYounger) {
  for (const uint64_t blocks : {20u, 2 * kBlocksPerHold + 5}) {
    std::vector<uint64_t> left;  // of the second prompt: without a failed view, with one
    for (const bool look : {false, true}) {
      TestCache large(blocks + 10);
      const auto first = SomeTokens(blocks * kBlock, 1);
      const auto second = SomeTokens(5 * kBlock, 2);
      auto sequence = large.Run(first);
      const UnleasedView view = Take(*sequence);
      sequence.reset();
      large.Run(second).reset();
      EXPECT_EQ(large.cache->Evict(1), 1u);
      if (look) ExpectGone(view);
      EXPECT_EQ(large.cache->Evict(blocks / 2), blocks / 2);
      left.push_back(large.Resident(second));
    }
    EXPECT_EQ(left[1], left[0]) << blocks;
  }
}

TEST_F(Unleased, FailsWhenItsBlocksMoved) {
  auto low = cache.Run(SomeTokens(4 * kBlock, 2), {.publish = false});
  tokens.resize(2 * kBlock);
  auto sequence = cache.Run(tokens);
  const UnleasedView view = Take(*sequence);
  low.reset();
  EXPECT_FALSE(cache.cache->Resize(cache.BytesFor(5)).has_value()) << "the sequence holds them";
  sequence.reset();
  ExpectShows(view);
  Must(cache.cache->Resize(cache.BytesFor(7)));
  ExpectShows(view);  // below the end, so they stayed
  Must(cache.cache->Resize(cache.BytesFor(5)));
  ExpectGone(view);
  EXPECT_EQ(cache.cache->stats().published_blocks, 2u);
  ExpectShows(Take(*cache.Open(tokens)));
}

TEST_F(Unleased, FailsWhenTheSequenceWroteOverIt) {
  auto sequence = cache.Run(tokens);
  const UnleasedView view = Take(*sequence);
  Must(cache.model.Feed(*sequence, Join(tokens, SomeTokens(3, 3))));
  ExpectShows(view);  // later writes behind it change nothing
  {
    const auto pinned = view.Pin();
    Must(sequence->Rollback(tokens.size()));
    Must(cache.model.Feed(*sequence, Join(tokens, SomeTokens(3, 4))));
    EXPECT_EQ(ShownBy(*pinned), shown) << "the sequence went on in a copy";
  }
  ExpectGone(view);
  const UnleasedView second = Take(*sequence);
  Must(sequence->Rollback(tokens.size()));
  ExpectGone(second);
}

TEST_F(Unleased, FailsAfterDamageAndErasure) {
  tokens.resize(2 * kBlock);
  {
    const auto sequence = cache.Run(tokens);
    const UnleasedView view = Take(*sequence);
    FlipBit(*sequence, 0);
    EXPECT_EQ(cache.cache->Verify().damaged, 1u);
    ExpectGone(view);
  }
  const auto sequence = cache.Run(tokens);
  const UnleasedView view = Take(*sequence);
  ExpectShows(view);
  Must(cache.cache->Erase(kDefaultTenant));
  ExpectGone(view);
}

TEST_F(Unleased, OfNothingShowsNothing) {
  const auto sequence = cache.Open(tokens);
  ExpectShows(Take(*sequence));
  EXPECT_TRUE(shown.empty());
}

}  // namespace
}  // namespace quire::cache

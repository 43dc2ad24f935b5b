#include "ranks/sequence/lane_share.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <vector>

#include "base/prng.h"
#include "ranks/sequence/share_text.h"

namespace quire::ranks::sequence {
namespace {

TEST(LaneShare, LanesOfAllRanksAreWholeSubtreesAndDisjoint) {
  for (const uint32_t ranks : {1u, 2u, 4u, 8u, 16u}) {
    LaneSet all = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const LaneSet lanes = LaneShare(rank, ranks).lanes();
      EXPECT_EQ(LaneCount(lanes), kLanes / ranks);
      EXPECT_EQ(all & lanes, 0u);
      all |= lanes;
      // Lane l merges with l + 8, then with l + 4, ...: as far as the rank has them, with its own.
      for (uint32_t step = kLanes / 2; step >= ranks && step > 0; step /= 2) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          EXPECT_EQ(lanes >> lane & 1, lanes >> (lane + step) % kLanes & 1);
        }
      }
    }
    EXPECT_EQ(all, kAllLanes);
  }
}

// The naive rule: token by token.
TEST(LaneShare, CountsAndFindsItsTokens) {
  for (const uint32_t ranks : {1u, 2u, 4u, 16u}) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const LaneShare share(rank, ranks);
      uint64_t own = 0;
      for (uint64_t position = 0; position < 40 * kSplitTokens; ++position) {
        EXPECT_EQ(share.Before(position), own);
        const bool owns = (share.lanes() >> position / kSplitTokens % kLanes & 1) != 0;
        EXPECT_EQ(share.Owns(position), owns);
        if (!owns) continue;
        EXPECT_EQ(share.PositionOf(own), position);
        ++own;
      }
    }
  }
}

TEST(LaneShare, NoRunOfTheTextHasMoreOwnTokensThanItSays) {
  const LaneShare share(1, 4);
  for (const uint64_t tokens : {1ull, 255ull, 256ull, 257ull, 1023ull, 1024ull, 1300ull, 4096ull}) {
    uint64_t most = 0;
    for (uint64_t begin = 0; begin < 8 * kSplitTokens; ++begin) {
      most = std::max(most, share.Before(begin + tokens) - share.Before(begin));
    }
    EXPECT_LE(most, share.MostOf(tokens)) << tokens;
    EXPECT_LE(share.MostOf(tokens), tokens / 4 + kSplitTokens);
  }
}

std::vector<TokenId> Tokens(size_t count, uint64_t seed, uint32_t vocab = 1000) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(vocab));
  return tokens;
}

TEST(ShareText, IdsOfTheShareKnowTheWholeTextBefore) {
  const auto stamps = Stamps::Create(1000, 16, {7});
  ASSERT_TRUE(stamps);
  const LaneShare share(1, 2);
  const std::vector<TokenId> text = Tokens(5 * kSplitTokens, 1);
  ShareText plain(share, *stamps);
  plain.Append(text);
  const uint64_t own = share.Before(text.size());
  ASSERT_EQ(own, 2 * kSplitTokens);
  const std::vector<TokenId> ids = plain.Share(0, own);
  for (uint64_t i = 0; i < own; ++i) EXPECT_EQ(ids[i] & 1023, text[share.PositionOf(i)]);

  // One other token anywhere before an own split, in splits of other ranks too, changes its first
  // block, and no block before that.
  for (uint64_t changed = 0; changed < 3 * kSplitTokens; changed += 97) {
    std::vector<TokenId> other = text;
    other[changed] ^= 1;
    ShareText with_other(share, *stamps);
    with_other.Append(other);
    const std::vector<TokenId> changed_ids = with_other.Share(0, own);
    const uint64_t splits_after = changed < kSplitTokens ? 0 : 1;
    const auto first = std::ranges::mismatch(ids, changed_ids).in1 - ids.begin();
    const bool is_own = share.Owns(changed);
    const uint64_t expected = is_own ? share.Before(changed) : splits_after * kSplitTokens;
    EXPECT_GE(first, static_cast<int64_t>(expected)) << changed;
    EXPECT_LT(first, static_cast<int64_t>(expected) + 16) << changed;
  }
}

TEST(ShareText, IsTheSameHoweverItGrewAndAfterACut) {
  const auto stamps = Stamps::Create(151936, 16, {});
  ASSERT_TRUE(stamps);
  const LaneShare share(0, 4);
  const std::vector<TokenId> text = Tokens(9 * kSplitTokens + 5, 3);
  ShareText whole(share, *stamps);
  whole.Append(text);
  ShareText grown(share, *stamps);
  grown.Append(Tokens(600, 9));
  grown.Cut(0);
  for (size_t at = 0; at < text.size(); at += 100) {
    grown.Append(std::span(text).subspan(at, std::min<size_t>(100, text.size() - at)));
    grown.Append(Tokens(300, at));
    grown.Cut(std::min<size_t>(at + 100, text.size()));
  }
  const uint64_t own = share.Before(text.size());
  EXPECT_EQ(whole.Share(0, own), grown.Share(0, own));
}

TEST(ShareText, RefusesIdsThatLeaveNoRoomForStamps) {
  EXPECT_TRUE(Stamps::Create(1 << 24, 16, {}));
  const auto refused = Stamps::Create((1 << 24) + 1, 16, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(Stamps::Create((1 << 24) + 1, 32, {}));
}

TEST(ShareText, RefusesTokensOutsideTheVocabulary) {
  const auto stamps = Stamps::Create(96, 16, {});
  ASSERT_TRUE(stamps);
  EXPECT_TRUE(stamps->Check(std::vector<TokenId>{0, 95}));
  EXPECT_FALSE(stamps->Check(std::vector<TokenId>{0, 96}));
  EXPECT_FALSE(stamps->Check(std::vector<TokenId>{-1}));
}

}  // namespace
}  // namespace quire::ranks::sequence

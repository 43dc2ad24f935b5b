// Sequences with some of the blocks: what they hold, cost and leave behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

using Blocks = std::vector<uint64_t>;

/// Rows of tokens [begin, end) of a stream of layer 1, as Gather gives them.
std::vector<float> Gathered(const Sequence& sequence, uint64_t begin, uint64_t end) {
  std::vector<float> out((end - begin) * 2 * 4);
  Must(sequence.Gather(1, StreamRole::kValue, begin, end, out));
  return out;
}

void ExpectKept(const Sequence& selected, const Sequence& whole, const Blocks& kept) {
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(Gathered(selected, i * kBlock, (i + 1) * kBlock),
              Gathered(whole, kept[i] * kBlock, (kept[i] + 1) * kBlock))
        << "block " << kept[i];
  }
}

NumericProfile ProfileOf(Codec codec) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  profile.codecs = {{StreamRole::kKey, codec}, {StreamRole::kValue, codec}};
  return profile;
}

class SelectTest : public testing::TestWithParam<Codec> {
 protected:
  TestCache cache_{24, SmallGeometry(), ProfileOf(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Codecs, SelectTest, testing::Values(Codec::kF16, Codec::kInt8),
                         [](const auto& test) { return std::string(CodecName(test.param)); });

TEST_P(SelectTest, KeepsBlocksAndTheTailInOrder) {
  const auto tokens = SomeTokens(7 * kBlock + 5, 1);
  for (const bool publish : {true, false}) {
    const auto whole = cache_.Run(tokens, {.publish = publish});
    for (const Blocks& kept : {Blocks{}, {0}, {6}, {0, 2, 3, 6}, {0, 1, 2, 3, 4, 5, 6}}) {
      const auto selected = Must(whole->Select(kept));
      EXPECT_EQ(selected->length(), kept.size() * kBlock + 5);
      EXPECT_EQ(selected->length() + selected->dropped_tokens(), tokens.size());
      ExpectKept(*selected, *whole, kept);
      EXPECT_EQ(Gathered(*selected, kept.size() * kBlock, selected->length()),
                Gathered(*whole, 7 * kBlock, tokens.size()));
    }
    EXPECT_EQ(Gathered(*whole, 0, tokens.size()).size(), tokens.size() * 8);
  }
}

TEST_P(SelectTest, GoesOnAndForksWithoutTouchingTheOriginal) {
  const auto tokens = SomeTokens(4 * kBlock + 3, 1);
  const auto whole = cache_.Run(tokens);
  const auto before = Gathered(*whole, 0, tokens.size());
  const auto selected = Must(whole->Select(Blocks{1, 3}));
  // Rows that the model would compute; only that they arrive matters.
  const auto history = SomeTokens(selected->length() + 2 * kBlock, 2);
  Must(cache_.model.Feed(*selected, history));
  EXPECT_EQ(selected->dropped_tokens(), 2 * kBlock);
  ExpectKept(*selected, *whole, {1, 3});
  EXPECT_EQ(Gathered(*whole, 0, tokens.size()), before);
  const auto fork = Must(selected->Fork());
  EXPECT_EQ(fork->dropped_tokens(), 2 * kBlock);
  EXPECT_EQ(Gathered(*fork, 0, fork->length()), Gathered(*selected, 0, selected->length()));
  const auto again = Must(selected->Select(Blocks{0}));
  EXPECT_EQ(again->length() + again->dropped_tokens(), selected->length() + 2 * kBlock);
}

TEST_P(SelectTest, GivesTheRestBack) {
  const auto tokens = SomeTokens(8 * kBlock, 1);
  for (const bool publish : {true, false}) {
    auto whole = cache_.Run(tokens, {.publish = publish});
    const auto selected = Must(whole->Select(Blocks{0, 7}));
    whole.reset();
    cache_.cache->Evict(100);  // published blocks without leases
    EXPECT_EQ(cache_.slots_used(), 2u) << publish;
    EXPECT_EQ(selected->stats().blocks_own, 2u);
  }
  EXPECT_EQ(cache_.slots_used(), 0u);
  EXPECT_EQ(cache_.cache->stats().hot_bytes_used, 0u);
}

TEST_P(SelectTest, PublishesNothing) {
  const auto tokens = SomeTokens(4 * kBlock, 1);
  auto whole = cache_.Run(tokens, {.publish = false});
  const auto selected = Must(whole->Select(Blocks{0, 1}));
  whole.reset();
  const auto history = Join(std::span(tokens).first(2 * kBlock), SomeTokens(3 * kBlock, 2));
  Must(cache_.model.Feed(*selected, history));
  EXPECT_EQ(cache_.Resident(Join(history, tokens)), 0u);
}

TEST_P(SelectTest, RefusesAndChangesNothing) {
  const auto tokens = SomeTokens(3 * kBlock + 1, 1);
  const auto whole = cache_.Run(tokens);
  const std::string before = cache_.Snapshot();
  for (const Blocks& bad : {Blocks{3}, {1, 1}, {2, 1}, {0, 99}}) {
    const auto refused = whole->Select(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("out of order or not one of its 3"));
  }
  EXPECT_EQ(cache_.Snapshot(), before);
  Must(cache_.model.AppendLayer(*whole, 0, Join(tokens, tokens)));
  EXPECT_THAT(whole->Select(Blocks{0}).error().message, HasSubstr("uncommitted"));
}

TEST(Select, WithoutRoomNothingChanges) {
  TestCache cache(5);
  const auto tokens = SomeTokens(4 * kBlock + 1, 1);
  const auto whole = cache.Run(tokens);
  const std::string before = cache.Snapshot();
  const auto refused = whole->Select(Blocks{0, 1});  // copies of both and of the tail
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache.Snapshot(), before);
}

}  // namespace
}  // namespace quire::cache

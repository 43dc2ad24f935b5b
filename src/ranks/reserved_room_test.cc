#include "ranks/reserved_room.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace quire::ranks {
namespace {

// Ranks with room for so many tokens, and what they were asked for.
struct Ranks {
  Result<void> Grow(ReservedRoom& room, uint64_t tokens) {
    return room.Grow(tokens, [this](uint64_t wanted) -> Result<void> {
      asked.push_back(wanted);
      if (wanted <= tokens_max) return {};
      return Fail(ErrorCode::kNoSpace, "full");
    });
  }

  uint64_t tokens_max = 0;
  std::vector<uint64_t> asked{};
};

CacheOptions OptionsWith(uint64_t tokens_max) {
  return {.profile = NumericProfile::Uniform(Codec::kF16, 16), .tokens_max = tokens_max};
}

TEST(ReservedRoom, AsksOnceForSomeBlocks) {
  Ranks ranks{.tokens_max = 1000};
  ReservedRoom room(OptionsWith(1000), 100);
  for (uint64_t tokens = 90; tokens <= 200; ++tokens) EXPECT_TRUE(ranks.Grow(room, tokens));
  EXPECT_EQ(ranks.asked, (std::vector<uint64_t>{128, 192, 256}));
  room.Forget();
  EXPECT_TRUE(ranks.Grow(room, 10));
  EXPECT_EQ(ranks.asked.back(), 64u);
}

TEST(ReservedRoom, AsksForNoMoreThanThereIsOrMayBe) {
  Ranks ranks{.tokens_max = 130};
  ReservedRoom room(OptionsWith(1000), 128);
  EXPECT_TRUE(ranks.Grow(room, 129));
  EXPECT_TRUE(ranks.Grow(room, 130));
  const auto full = ranks.Grow(room, 131);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(ranks.asked, (std::vector<uint64_t>{192, 129, 192, 130, 192, 131}));

  Ranks large{.tokens_max = 1000};
  ReservedRoom longest(OptionsWith(150), 140);
  EXPECT_TRUE(large.Grow(longest, 141));
  EXPECT_TRUE(large.Grow(longest, 150));
  EXPECT_EQ(large.asked, (std::vector<uint64_t>{150}));
}

}  // namespace
}  // namespace quire::ranks

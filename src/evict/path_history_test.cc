#include "evict/path_history.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::evict {
namespace {

using Keys = std::vector<uint64_t>;
constexpr uint64_t kEnds = 100;

TEST(PathHistory, CountsTheTurnsOfAConversation) {
  PathHistory paths;
  EXPECT_EQ(paths.Note(Keys{1, 2, 3}, 1000, kEnds).number, 0u);
  const auto second = paths.Note(Keys{1, 2, 3, 4, 5}, 4000, kEnds);
  EXPECT_EQ(second.number, 1u);
  EXPECT_EQ(second.gap_ms, 3000u);
  const auto third = paths.Note(Keys{1, 2, 3, 4, 5, 6}, 4500, kEnds);
  EXPECT_EQ(third.number, 2u);
  EXPECT_EQ(third.gap_ms, 500u);
}

TEST(PathHistory, ALastBlockMayHaveBeenPartial) {
  PathHistory paths;
  paths.Note(Keys{1, 2, 3}, 1000, kEnds);
  EXPECT_EQ(paths.Note(Keys{1, 2, 33, 4}, 2000, kEnds).number, 1u) << "3 was filled up";
  EXPECT_EQ(paths.Note(Keys{1, 22, 23}, 3000, kEnds).number, 0u) << "another way from the start";
}

TEST(PathHistory, ASharedStartIsNoTurn) {
  PathHistory paths;
  paths.Note(Keys{1}, 1000, kEnds);
  EXPECT_EQ(paths.Note(Keys{1, 2}, 2000, kEnds).number, 0u);
  EXPECT_EQ(paths.Note(Keys{1, 7}, 2000, kEnds).number, 0u);
  EXPECT_EQ(paths.Note(Keys{}, 2000, kEnds).number, 0u);
}

TEST(PathHistory, TheOldestEndsAreForgotten) {
  PathHistory paths;
  constexpr uint64_t kFew = 4;  // two paths
  paths.Note(Keys{1, 2, 3}, 0, kFew);
  paths.Note(Keys{1, 12, 13}, 0, kFew);
  EXPECT_EQ(paths.Note(Keys{1, 2, 3, 4}, 0, kFew).number, 1u);
  paths.Note(Keys{1, 22, 23}, 0, kFew);
  EXPECT_EQ(paths.Note(Keys{1, 12, 13, 14}, 0, kFew).number, 0u) << "was the oldest";
}

// A path ends with its last two blocks, but never with its first.
TEST(PathHistory, RemembersTwoEndsOfEachPath) {
  PathHistory paths;
  paths.Note(Keys{1, 2}, 0, kEnds);
  EXPECT_EQ(paths.size(), 1u);
  paths.Note(Keys{11, 12, 13}, 0, kEnds);
  EXPECT_EQ(paths.size(), 3u);
  paths.Note(Keys{21, 22, 23, 24, 25}, 0, kEnds);
  EXPECT_EQ(paths.size(), 5u);
  EXPECT_EQ(paths.Note(Keys{21, 22, 23, 30}, 0, kEnds).number, 0u) << "23 was no end";
  EXPECT_EQ(paths.Note(Keys{21, 22, 23, 24, 31}, 0, kEnds).number, 1u);
}

// The longest end that is known counts.
TEST(PathHistory, TheLatestTurnIsTheOneGoneOnWith) {
  PathHistory paths;
  paths.Note(Keys{1, 2}, 1000, kEnds);
  paths.Note(Keys{1, 2, 3, 4}, 2000, kEnds);
  const auto third = paths.Note(Keys{1, 2, 3, 4, 5}, 5000, kEnds);
  EXPECT_EQ(third.number, 2u);
  EXPECT_EQ(third.gap_ms, 3000u);
  const auto other = paths.Note(Keys{1, 2, 6}, 6000, kEnds);
  EXPECT_EQ(other.number, 1u);
  EXPECT_EQ(other.gap_ms, 5000u) << "where it branched off";
}

TEST(PathHistory, WhatComesBackAndBackStaysSmall) {
  PathHistory paths;
  for (uint32_t turn = 0; turn < 10'000; ++turn) {
    EXPECT_EQ(paths.Note(Keys{1, 2, 3}, turn, kEnds).number, turn);
  }
}

}  // namespace
}  // namespace quire::evict

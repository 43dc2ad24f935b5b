#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <vector>

#include "base/prng.h"
#include "evict/request_history.h"

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

/// The obvious version.
class NaivePaths {
 public:
  PathHistory::Turn Note(const Keys& keys, uint64_t now_ms, uint64_t ends_max) {
    PathHistory::Turn turn;
    for (size_t i = keys.size(); i-- > 1;) {
      const auto end = std::ranges::find(ends_, keys[i], &End::key);
      if (end == ends_.end()) continue;
      turn = {.number = end->turn + 1, .gap_ms = now_ms - end->time_ms};
      break;
    }
    for (size_t i = keys.size() < 3 ? 1 : keys.size() - 2; i < keys.size(); ++i) {
      ends_.remove_if([&](const End& end) { return end.key == keys[i]; });
      ends_.push_back({keys[i], turn.number, now_ms});
    }
    while (ends_.size() > ends_max) ends_.pop_front();
    return turn;
  }
  size_t size() const { return ends_.size(); }

 private:
  struct End {
    uint64_t key = 0;
    uint32_t turn = 0;
    uint64_t time_ms = 0;
  };
  std::list<End> ends_;  // the latest last
};

// Whole or in pieces, of paths that are the same again, go on or leave off.
TEST(PathHistory, InLockStepWithTheObviousVersion) {
  constexpr uint64_t kEndsMax = 60;
  NaivePaths naive;
  PathHistory whole;
  PathHistory in_pieces;
  Prng prng(4);
  std::vector<Keys> known = {{}};
  uint64_t longest = 0;
  for (uint64_t now_ms = 0; now_ms < 3000; ++now_ms) {
    Keys keys = known[prng.NextBelow(known.size())];
    keys.resize(keys.size() - prng.NextBelow(std::min<size_t>(keys.size(), 3) + 1));
    for (uint64_t more = prng.NextBelow(6); more > 0; --more) keys.push_back(prng.Next64());
    const PathHistory::Turn turn = naive.Note(keys, now_ms, kEndsMax);
    PathHistory::Progress at;
    const uint64_t keys_max = 1 + prng.NextBelow(4);
    uint64_t pieces = 0;
    for (bool all = false; !all; ++pieces) {
      uint64_t keys_left = keys_max;
      all = in_pieces.NoteSome(keys, now_ms, kEndsMax, at, keys_left);
    }
    for (const PathHistory::Turn& other : {whole.Note(keys, now_ms, kEndsMax), at.turn}) {
      ASSERT_EQ(other.number, turn.number);
      ASSERT_EQ(other.gap_ms, turn.gap_ms);
    }
    ASSERT_EQ(whole.size(), naive.size());
    ASSERT_EQ(in_pieces.size(), naive.size());
    longest = std::max(longest, pieces);
    known.push_back(keys);
    if (known.size() > 40) known.erase(known.begin() + 1);
  }
  EXPECT_GT(longest, 3u);
}

// What a cache that goes by recency hits, blocks leased while room is made.
class NaiveLru {
 public:
  explicit NaiveLru(size_t capacity) : capacity_(capacity) {}

  uint64_t Use(const std::vector<uint64_t>& keys) {
    size_t hits = 0;
    while (hits < keys.size() && std::ranges::count(blocks_, keys[hits]) > 0) ++hits;
    for (const uint64_t key : keys) blocks_.remove(key);
    for (size_t i = keys.size(); i-- > 0;) blocks_.push_back(keys[i]);
    while (blocks_.size() > capacity_) blocks_.pop_front();
    return hits;
  }
  size_t size() const { return blocks_.size(); }

 private:
  const size_t capacity_;
  std::list<uint64_t> blocks_;  // least recent first
};

// A cache by recency beside it: the balance stays even, whatever the paths, and in pieces too.
TEST(RecencyJudge, RunsTheSameCacheByRecency) {
  constexpr uint64_t kCapacity = 100;
  RecencyJudge judge;
  RecencyJudge in_pieces;
  NaiveLru cache(kCapacity);
  Prng prng(6);
  uint64_t all_hits = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<uint64_t> keys;
    const uint64_t path = prng.NextBelow(30);
    const uint64_t blocks = 1 + prng.NextBelow(i % 50 == 0 ? 150 : 12);
    for (uint64_t block = 0; block < blocks; ++block) {
      keys.push_back(Prng(block < 3 ? block : path * 1000 + block).Next64());
    }
    const uint64_t held = cache.size();
    const uint64_t hits = cache.Use(keys);
    all_hits += hits;
    const RecencyJudge::Path used = {.keys = keys,
                                     .asked_blocks = keys.size(),
                                     .hit_blocks = hits,
                                     .cache_blocks = std::min(kCapacity, held + blocks - hits)};
    judge.Use(used);
    RecencyJudge::Progress at;
    const uint64_t keys_max = 1 + prng.NextBelow(20);
    uint64_t seen = 0;  // at most once to find it, to renew it, to make room and to add it
    for (bool all = false; !all;) {
      uint64_t keys_left = keys_max;
      all = in_pieces.UseSome(used, at, keys_left);
      seen += keys_max - keys_left;
    }
    ASSERT_LE(seen, 4 * keys.size() + 1);
    ASSERT_EQ(judge.balance(), 0.0) << "request " << i;
    judge.End(cache.size());
    ASSERT_EQ(judge.size(), cache.size());
    in_pieces.End(cache.size());
    ASSERT_EQ(in_pieces.balance(), 0.0) << "request " << i;
    ASSERT_EQ(in_pieces.size(), cache.size());
  }
  EXPECT_GT(all_hits, 10'000u);
  EXPECT_TRUE(judge.trusts());
}

// A policy that keeps nothing of what recency would have hit soon has to stand back, and may try
// again once it has lost nothing for long.
TEST(RecencyJudge, ALosingPolicyGoesByRecencyForAWhile) {
  RecencyJudge judge;
  const std::vector<uint64_t> path = {1, 2, 3, 4};
  judge.Use({path, 4, 0, 100});
  uint64_t lost = 0;
  for (; judge.trusts(); lost += 4) {
    ASSERT_LT(lost, 100u) << "a thousandth of 65,536";
    judge.Use({path, 4, 0, 100});
  }
  EXPECT_GT(lost, 60u);
  uint64_t calm = 0;
  for (; !judge.trusts(); ++calm) {
    ASSERT_LT(calm, 100'000u);
    judge.Use({path, 4, 4, 100});
  }
  EXPECT_GT(calm, 1000u) << "not at once";
}

// A millionth of it is forgotten with every block used; gains count for 0.005 of the uses at most.
TEST(RecencyJudge, TheBalanceCanBeWorkedOutByHand) {
  RecencyJudge judge;
  judge.Use({std::vector<uint64_t>{1, 2, 3, 4}, 4, 4, 100});
  EXPECT_DOUBLE_EQ(judge.balance(), 0.02);
  judge.Use({std::vector<uint64_t>{1, 2, 3, 4}, 4, 1, 100});
  EXPECT_DOUBLE_EQ(judge.balance(), 0.02 * (1 - 4e-6) + 1 - 4);
  const double before = judge.balance();
  judge.Use({std::vector<uint64_t>{5, 6}, 2, 1, 100});
  EXPECT_DOUBLE_EQ(judge.balance(), before * (1 - 2e-6) + 1);
}

// It stands back below -65.536, a thousandth of 65,536 uses, and tries again from half of that on;
// with more uses the bounds are as much wider.
TEST(RecencyJudge, WhereTheBoundsAre) {
  RecencyJudge judge;
  const std::vector<uint64_t> one = {1};
  judge.Use({one, 1, 0, 100});
  for (int i = 0; i < 65; ++i) judge.Use({one, 1, 0, 100});
  EXPECT_NEAR(judge.balance(), -65, 0.01);
  EXPECT_TRUE(judge.trusts());
  judge.Use({one, 1, 0, 100});
  EXPECT_FALSE(judge.trusts());
  // A gain of one each: recency has not seen these keys, the policy had them.
  for (uint64_t key = 2; key < 2 + 33; ++key) judge.Use({std::vector<uint64_t>{key}, 1, 1, 100});
  EXPECT_NEAR(judge.balance(), -33, 0.01);
  EXPECT_FALSE(judge.trusts());
  judge.Use({std::vector<uint64_t>{100}, 1, 1, 100});
  EXPECT_TRUE(judge.trusts());

  RecencyJudge used;
  for (int i = 0; i < 200'000; ++i) used.Use({one, 1, i == 0 ? 0U : 1U, 100});
  // They weigh a million times 1 - 1 / e^0.2.
  const double bound = 0.001 * 1e6 * (1 - std::exp(-0.2));
  uint64_t lost = 0;
  for (; used.trusts(); ++lost) used.Use({one, 1, 0, 100});
  EXPECT_NEAR(static_cast<double>(lost), bound, 1.5);
}

// A block that no request asked for is no loss, though recency has it.
TEST(RecencyJudge, OnlyWhatWasAskedForCounts) {
  RecencyJudge judge;
  const std::vector<uint64_t> path = {1, 2, 3, 4};
  for (int i = 0; i < 1000; ++i) judge.Use({path, 0, 0, 100});
  EXPECT_EQ(judge.balance(), 0.0);
  judge.Use({path, 3, 2, 100});
  EXPECT_EQ(judge.balance(), -1.0);
}

// Old gains do not pay for unlimited losses.
TEST(RecencyJudge, GainsPayForFewLosses) {
  RecencyJudge judge;
  uint64_t next = 1;
  for (int i = 0; i < 25'000; ++i) {
    judge.Use({std::vector<uint64_t>{next, next + 1, next + 2, next + 3}, 4, 4, 100});
    next += 4;
  }
  const std::vector<uint64_t> path = {1, 2, 3, 4};
  uint64_t lost = 0;
  for (; judge.trusts(); lost += 4) {
    ASSERT_LT(lost, 1000u) << "of 100,000 gained";
    judge.Use({path, 4, 0, 100});
  }
}

}  // namespace
}  // namespace quire::evict

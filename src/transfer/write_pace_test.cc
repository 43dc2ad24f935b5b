#include "transfer/write_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/prng.h"

namespace quire::transfer {
namespace {

constexpr uint64_t kSpreadUs = 1'000'000;

TEST(WritePace, WritesWhatCameAtOnceEvenly) {
  WritePace pace(kSpreadUs);
  uint64_t queued = 1000;
  EXPECT_EQ(pace.Due(0, queued, 0), 0);
  for (uint64_t percent = 1; percent <= 100; ++percent) {
    EXPECT_EQ(pace.Due(percent * kSpreadUs / 100, queued, 0), 10) << percent;
    queued -= 10;
  }
  EXPECT_EQ(pace.Due(2 * kSpreadUs, 0, 0), 0);
}

TEST(WritePace, WritesAtOnceWithoutSpread) {
  WritePace pace(0);
  EXPECT_EQ(pace.Due(0, 7, 0), 7);
  EXPECT_EQ(pace.Due(0, 9, 0), 9);
}

TEST(WritePace, HurriesWhereBlocksLeaveMemoryUnwritten) {
  WritePace pace(kSpreadUs);
  EXPECT_EQ(pace.Due(0, 100, 0), 0);
  EXPECT_EQ(pace.Due(1000, 98, 2), 98);
  EXPECT_EQ(pace.Due(2000, 50, 2), 50);
  EXPECT_EQ(pace.Due(3000, 0, 2), 0);
  const uint64_t later_us = 20'000'000;
  EXPECT_EQ(pace.Due(later_us, 100, 2), 0);  // that was long ago
  EXPECT_EQ(pace.Due(later_us + kSpreadUs / 2, 100, 2), 50);
}

TEST(WritePace, WhatCouldNotBeTakenIsDueAgain) {
  WritePace pace(kSpreadUs);
  pace.Due(0, 10, 0);
  EXPECT_EQ(pace.Due(kSpreadUs / 2, 10, 0), 5);
  EXPECT_EQ(pace.Due(kSpreadUs / 2, 10, 0), 5);  // all five were put back
  EXPECT_EQ(pace.Due(kSpreadUs, 10, 0), 10);
}

// Whatever comes when, each block is written within the time from when it was seen, in the order
// in which it came, and no block earlier than blocks that came with it allow.
TEST(WritePace, EveryBlockIsWrittenInItsTime) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Prng prng(seed);
    WritePace pace(kSpreadUs);
    std::deque<uint64_t> seen_us;
    uint64_t now_us = 0;
    uint64_t written = 0;
    uint64_t most_at_once = 0;
    for (int step = 0; step < 3000; ++step) {
      now_us += 1 + prng.NextBelow(4000);
      const bool burst = prng.NextBelow(400) == 0;
      const uint64_t come = burst ? 5000 : prng.NextBelow(20) == 0 ? prng.NextBelow(10) : 0;
      seen_us.insert(seen_us.end(), come, now_us);
      const uint64_t due = pace.Due(now_us, seen_us.size(), 0);
      ASSERT_LE(due, seen_us.size());
      most_at_once = std::max(most_at_once, due);
      seen_us.erase(seen_us.begin(), seen_us.begin() + static_cast<ptrdiff_t>(due));
      written += due;
      if (seen_us.empty()) continue;
      ASSERT_LT(now_us, seen_us.front() + kSpreadUs) << "seed " << seed << " step " << step;
    }
    EXPECT_GT(written, 0);
    EXPECT_LT(most_at_once, 1000) << "seed " << seed;
  }
}

}  // namespace
}  // namespace quire::transfer

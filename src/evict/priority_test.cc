#include "evict/priority.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "evict/test_drain.h"

namespace quire::evict {
namespace {

TEST(Priority, LowPrioritiesGoFirst) {
  PriorityPolicy policy;
  policy.Add(BlockId(0), {.key = 1, .priority = 80});
  policy.Add(BlockId(1), {.key = 2, .priority = 0});
  policy.Add(BlockId(2), {.key = 3});
  policy.Add(BlockId(3), {.key = 4, .priority = 100});
  policy.Add(BlockId(4), {.key = 5, .priority = 255});
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{1, 2, 0, 3, 4}));
}

TEST(Priority, UnsetIsFifty) {
  PriorityPolicy policy;
  policy.Add(BlockId(0), {.key = 1});
  policy.Add(BlockId(1), {.key = 2, .priority = 50});
  policy.Add(BlockId(2), {.key = 3, .priority = 51});
  policy.Add(BlockId(3), {.key = 4, .priority = 49});
  policy.Add(BlockId(4), {.key = 5});
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{3, 0, 1, 4, 2}));
}

TEST(Priority, PrefixesOutliveTheRecentAndTheRecentTheOld) {
  PriorityPolicy policy;
  policy.Begin({});
  policy.Add(BlockId(0), {.key = 1});
  policy.Remove(BlockId(0));
  policy.Add(BlockId(0), {.key = 1});  // two requests used it
  policy.Add(BlockId(1), {.key = 2});
  policy.Add(BlockId(2), {.key = 3});
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{1, 2, 0}));
}

TEST(Priority, BlocksAddedOutsideARequestCountAsNone) {
  PriorityPolicy policy;
  policy.Begin({});
  for (const uint32_t block : {0U, 1U}) policy.Add(BlockId(block), {.key = block + uint64_t{1}});
  policy.End();
  policy.Remove(BlockId(0));
  policy.Add(BlockId(0), {.key = 1});  // a view that ended last
  policy.Begin({});
  policy.Remove(BlockId(1));
  policy.Add(BlockId(1), {.key = 2});  // a second request
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{0, 1}));
}

TEST(Priority, AnExpiredOneCountsAsUnset) {
  PriorityPolicy policy;
  policy.Begin({.time_ms = 1000});
  policy.Add(BlockId(0), {.key = 1, .priority = 90, .expires_ms = 3000});
  policy.Add(BlockId(1), {.key = 2});
  policy.Add(BlockId(2), {.key = 3, .priority = 10, .expires_ms = 3000});
  policy.Add(BlockId(3), {.key = 4, .priority = 1, .expires_ms = 500});  // is over
  EXPECT_EQ(policy.Victim(), BlockId(2));
  policy.Begin({.time_ms = 2999});
  EXPECT_EQ(policy.Victim(), BlockId(2));
  policy.Begin({.time_ms = 3000});
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(Priority, ARemovedBlockExpiresNoMore) {
  PriorityPolicy policy;
  policy.Add(BlockId(0), {.key = 1, .priority = 90, .expires_ms = 10});
  policy.Remove(BlockId(0));
  policy.Begin({.time_ms = 20});
  policy.Add(BlockId(0), {.key = 1, .priority = 70});
  policy.Add(BlockId(1), {.key = 2, .priority = 60});
  EXPECT_EQ(policy.Victim(), BlockId(1));
}

TEST(Priority, TimePassesWithoutRequestsToo) {
  PriorityPolicy policy;
  policy.Add(BlockId(0), {.key = 1, .priority = 90, .expires_ms = 10});
  policy.Add(BlockId(1), {.key = 2, .priority = 60});
  EXPECT_EQ(policy.Victim(), BlockId(1));
  policy.Advance(10);
  EXPECT_EQ(policy.Victim(), BlockId(0));
  policy.Advance(5);
  policy.Add(BlockId(2), {.key = 3, .priority = 40, .expires_ms = 10});
  EXPECT_EQ(policy.Victim(), BlockId(0)) << "time does not go back";
}

// Between Begin and End calls for other requests may come in.
TEST(Priority, CallsDuringAPauseBelongToNoRequest) {
  PriorityPolicy policy;
  EXPECT_EQ(policy.Pause(), nullptr);
  policy.Begin({});
  for (uint32_t block = 0; block < 3; ++block) {
    policy.Add(BlockId(block), {.key = block + uint64_t{1}});
  }
  auto paused = policy.Pause();
  policy.Remove(BlockId(0));
  policy.Add(BlockId(0), {.key = 1});  // a view ends: no second use
  policy.Resume(std::move(paused));
  policy.Remove(BlockId(1));
  policy.Add(BlockId(1), {.key = 2});  // the request goes on
  policy.End();
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{2, 0, 1}));
}

// The priority weighs more than whether a block is shared, by however little it differs.
TEST(Priority, SharedOnlyCountsAmongEquals) {
  PriorityPolicy policy;
  policy.Begin({});
  for (int use = 0; use < 2; ++use) {
    if (use > 0) policy.Remove(BlockId(0));
    policy.Add(BlockId(0), {.key = 1, .priority = 49});
  }
  policy.Add(BlockId(1), {.key = 2, .priority = 50});
  policy.Add(BlockId(2), {.key = 3, .priority = 49});
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{2, 0, 1}));
}

// What expires keeps that it was shared.
TEST(Priority, AnExpiredOneMayBeShared) {
  PriorityPolicy policy;
  policy.Begin({});
  for (int use = 0; use < 2; ++use) {
    if (use > 0) policy.Remove(BlockId(0));
    policy.Add(BlockId(0), {.key = 1, .priority = 10, .expires_ms = 100});
  }
  policy.Add(BlockId(1), {.key = 2});
  EXPECT_EQ(policy.Victim(), BlockId(0));
  policy.Advance(100);
  EXPECT_EQ(policy.Victim(), BlockId(1));
  policy.Evict(BlockId(1));
  policy.Advance(200);
  EXPECT_EQ(policy.Victim(), BlockId(0));
}

}  // namespace
}  // namespace quire::evict

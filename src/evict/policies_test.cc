#include "evict/policies.h"

#include <gtest/gtest.h>

#include "evict/recent_keys.h"
#include "evict/request_history.h"
#include "evict/return_shadow.h"

namespace quire::evict {
namespace {

TEST(Policies, AHistoryCostsASmallShareOfASlot) {
  EXPECT_EQ(HistoryBytesPerSlot(0), 0u);
  EXPECT_EQ(HistoryBytesPerSlot(64), 1u);
  EXPECT_EQ(HistoryBytesPerSlot(8192), 128u);
  EXPECT_EQ(HistoryBytesPerSlot(64 * 4096), 4096u);
  EXPECT_EQ(HistoryBytesPerSlot(uint64_t{1} << 30), 4096u) << "no more is of use";
}

// As their headers say; the cache's tests compare it with the heap.
TEST(Policies, SayWhatABlockCosts) {
  struct Case {
    std::string_view name;
    uint64_t bytes;
  };
  for (const auto& [name, bytes] :
       {Case{"lru", 8}, Case{"priority", 128 + 64}, Case{"token_limit", 96}, Case{"quire", 112}}) {
    EXPECT_EQ(MakePolicy(name)->bytes_per_block(), bytes) << name;
  }
  // For each remembered key: an entry, and 10 bytes for its place and its share of the buckets.
  EXPECT_EQ(GhostKeys::kBytesEach, 24u + 10);
  EXPECT_EQ(RecencyJudge::kBytesEach, 24u + 10);
  EXPECT_EQ(PathHistory::kBytesEach, 40u + 10);
  // With a place in its class, and a quarter of a score.
  EXPECT_EQ(ReturnShadow::kBytesEach, 88u + 10 + 8 + 2);
}

// What a cache asks of a policy before it takes the trouble to tell it.
TEST(Policies, SayWhatTheyHear) {
  struct Case {
    std::string_view name;
    bool history, requests, priorities, time;
  };
  constexpr Case kCases[] = {
      {"lru", false, false, false, false},
      {"priority", false, true, true, true},
      {"token_limit", false, true, false, false},
      {"quire", true, true, false, true},
  };
  EXPECT_EQ(std::size(kCases), PolicyNames().size());
  for (const Case& wanted : kCases) {
    const auto policy = MakePolicy(wanted.name);
    ASSERT_NE(policy, nullptr) << wanted.name;
    EXPECT_EQ(policy->has_history(), wanted.history) << wanted.name;
    EXPECT_EQ(policy->hears_requests(), wanted.requests) << wanted.name;
    EXPECT_EQ(policy->heeds_priorities(), wanted.priorities) << wanted.name;
    EXPECT_EQ(policy->hears_time(), wanted.time) << wanted.name;
  }
}

}  // namespace
}  // namespace quire::evict

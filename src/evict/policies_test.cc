#include "evict/policies.h"

#include <gtest/gtest.h>

namespace quire::evict {
namespace {

TEST(Policies, AHistoryCostsASmallShareOfASlot) {
  EXPECT_EQ(HistoryBytesPerSlot(0), 0u);
  EXPECT_EQ(HistoryBytesPerSlot(64), 1u);
  EXPECT_EQ(HistoryBytesPerSlot(8192), 128u);
  EXPECT_EQ(HistoryBytesPerSlot(64 * 4096), 4096u);
  EXPECT_EQ(HistoryBytesPerSlot(uint64_t{1} << 30), 4096u) << "no more is of use";
}

// What a cache asks of a policy before it takes the trouble to tell it.
TEST(Policies, SayWhatTheyHear) {
  struct Case {
    std::string_view name;
    bool history, requests, priorities, time;
  };
  constexpr Case kCases[] = {
      {"lru", false, false, false, false},   {"lfu", false, false, false, false},
      {"s3fifo", true, false, false, false}, {"arc", true, false, false, false},
      {"priority", false, true, true, true}, {"token_limit", false, true, false, false},
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

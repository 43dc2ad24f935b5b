#include "evict/recent_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <utility>

#include "base/prng.h"

namespace quire::evict {
namespace {

TEST(RecentKeys, EqualsAListThatIsSearched) {
  RecentKeys<int> keys;
  std::list<std::pair<uint64_t, int>> judge;  // oldest first
  Prng prng(3);
  uint64_t most = 0;
  for (int step = 0; step < 30'000; ++step) {
    const uint64_t key = prng.NextBelow(300);
    const auto known = std::ranges::find(judge, key, [](const auto& entry) { return entry.first; });
    const auto place = keys.Find(key);
    ASSERT_EQ(place.is_none(), known == judge.end());
    const uint64_t choice = prng.NextBelow(100);
    if (choice == 0) {
      const uint64_t left = prng.NextBelow(400);
      keys.Trim(left);
      while (judge.size() > left) judge.pop_front();
    } else if (choice > 20) {
      keys[keys.AddOrRenew(key)] = step;
      if (known != judge.end()) judge.erase(known);
      judge.emplace_back(key, step);
    } else if (!place.is_none()) {
      keys.Remove(place);
      judge.erase(known);
    }
    ASSERT_EQ(keys.size(), judge.size());
    most = std::max(most, keys.size());
    auto at = keys.Oldest();
    for (const auto& [expected, value] : judge) {
      ASSERT_EQ(keys.key(at), expected);
      ASSERT_EQ(keys[at], value);
      at = keys.Next(at);
    }
    ASSERT_TRUE(at.is_none());
    ASSERT_LE(keys.bytes(), std::max<uint64_t>(64, most) * RecentKeys<int>::kBytesEach);
  }
  EXPECT_GT(most, 200u);
}

TEST(GhostKeys, KeepsTheLatestOfNonZeroKeys) {
  GhostKeys ghosts;
  for (uint64_t key = 0; key < 10; ++key) ghosts.Add(key);
  EXPECT_EQ(ghosts.size(), 9u) << "0 names nothing";
  ghosts.Add(1);  // noted again: the newest
  ghosts.Trim(3);
  EXPECT_EQ(ghosts.size(), 3u);
  EXPECT_FALSE(ghosts.Take(7));
  EXPECT_TRUE(ghosts.Take(8));
  EXPECT_FALSE(ghosts.Take(8)) << "it was taken";
  EXPECT_TRUE(ghosts.Take(9));
  EXPECT_TRUE(ghosts.Take(1));
}

}  // namespace
}  // namespace quire::evict

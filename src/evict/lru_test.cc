#include "evict/lru.h"

#include <gtest/gtest.h>

#include <memory>

namespace quire::evict {
namespace {

std::vector<uint32_t> Drain(Policy& policy) {
  std::vector<uint32_t> order;
  while (const auto victim = policy.Victim()) {
    order.push_back(victim->number());
    policy.Remove(*victim);
  }
  return order;
}

TEST(Lru, IsEmptyAtFirst) {
  LruPolicy lru;
  EXPECT_EQ(lru.name(), "lru");
  EXPECT_EQ(lru.size(), 0u);
  EXPECT_EQ(lru.Victim(), std::nullopt);
}

TEST(Lru, OldestGoesFirst) {
  LruPolicy lru;
  for (uint32_t block : {5, 0, 9, 2}) lru.Add(BlockId(block));
  EXPECT_EQ(lru.size(), 4u);
  EXPECT_EQ(lru.Victim(), BlockId(5));
  EXPECT_EQ(lru.Victim(), BlockId(5));  // asking changes nothing
  EXPECT_EQ(Drain(lru), (std::vector<uint32_t>{5, 0, 9, 2}));
  EXPECT_EQ(lru.size(), 0u);
}

TEST(Lru, UseMakesABlockTheMostRecent) {
  LruPolicy lru;
  for (uint32_t block : {1, 2, 3, 4}) lru.Add(BlockId(block));
  for (uint32_t block : {1, 3}) lru.Remove(BlockId(block));
  for (uint32_t block : {3, 1}) lru.Add(BlockId(block));
  EXPECT_EQ(Drain(lru), (std::vector<uint32_t>{2, 4, 3, 1}));
}

TEST(Lru, RemovesFirstLastAndOnlyBlock) {
  LruPolicy lru;
  for (uint32_t block : {1, 2, 3}) lru.Add(BlockId(block));
  lru.Remove(BlockId(1));
  lru.Remove(BlockId(3));
  EXPECT_EQ(lru.Victim(), BlockId(2));
  lru.Remove(BlockId(2));
  EXPECT_EQ(lru.Victim(), std::nullopt);
  lru.Add(BlockId(1));
  EXPECT_EQ(Drain(lru), std::vector<uint32_t>{1});
}

TEST(LruDeathTest, StopsOnCallsAgainstTheContract) {
  LruPolicy lru;
  lru.Add(BlockId(3));
  EXPECT_DEATH(lru.Add(BlockId(3)), "already evictable");
  EXPECT_DEATH(lru.Remove(BlockId(2)), "not evictable");
  EXPECT_DEATH(lru.Remove(BlockId(1000)), "not evictable");
  EXPECT_DEATH(lru.Remove(BlockId::None()), "not evictable");
  EXPECT_DEATH(lru.Add(BlockId::None()), "is_none");
}

}  // namespace
}  // namespace quire::evict

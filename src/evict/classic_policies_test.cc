// LRU and token limit on orders that can be worked out by hand, and LRU beside a list.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <tuple>

#include "evict/batch_size.h"
#include "evict/classic_policies.h"
#include "evict/test_drain.h"

namespace quire::evict {
namespace {

RC_GTEST_PROP(TokenLimitProperty, EqualsASearchForTheLongestPrompt, ()) {
  TokenLimitPolicy policy;
  std::map<uint32_t, std::pair<int64_t, uint64_t>> judge;  // block: minus tokens, last
  for (uint64_t step = 1; step < 150; ++step) {
    const auto block = *rc::gen::inRange<uint32_t>(0, 20);
    const auto tokens = *rc::gen::inRange<int64_t>(0, 5);
    if (judge.contains(block)) policy.Remove(BlockId(block));
    policy.Begin({.prompt_tokens = static_cast<uint64_t>(tokens)});
    policy.Add(BlockId(block));
    judge[block] = {-tokens, step};
    const auto first =
        std::ranges::min_element(judge, {}, [](const auto& entry) { return entry.second; });
    RC_ASSERT(policy.Victim() == BlockId(first->first));
    if (*rc::gen::inRange(0, 3) > 0) continue;
    policy.Evict(BlockId(first->first));
    judge.erase(first);
  }
}

TEST(TokenLimit, WhatNoRequestAddsKeepsItsPlace) {
  TokenLimitPolicy policy;
  policy.Add(BlockId(9));  // no request has used it: goes last
  policy.Begin({.prompt_tokens = 500});
  policy.Add(BlockId(0));
  policy.Add(BlockId(1));
  policy.End();
  policy.Begin({.prompt_tokens = 1000});
  policy.Add(BlockId(2));
  // In between a view of another block ends, and one of a block that no request has used.
  auto paused = policy.Pause();
  policy.Remove(BlockId(0));
  policy.Add(BlockId(0));
  policy.Add(BlockId(8));
  policy.Resume(std::move(paused));
  policy.Add(BlockId(3));
  policy.End();
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{2, 3, 1, 0, 9, 8}));
  policy.Add(BlockId(9));
  policy.Add(BlockId(2));
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{9, 2})) << "an id that came back is another's";
}

// Of 16 requests in a row that all need 160 the n-th knows 1 - (15 / 16)^n of either.
TEST(BatchSize, CanBeWorkedOutByHand) {
  BatchSize batch;
  double known = 0;
  for (int request = 0; request < 16; ++request) {
    known += (1 - known) / 16;
    EXPECT_EQ(batch.Next(160, 100, 10'000), 60 + static_cast<uint64_t>(known * known * 160));
    EXPECT_DOUBLE_EQ(batch.pressure(), known);
  }
  EXPECT_GT(known, 0.6);
  EXPECT_EQ(batch.Next(160, 160, 10'000), 0u) << "it fits exactly";
  EXPECT_DOUBLE_EQ(batch.pressure(), known * 15 / 16);
}

TEST(BatchSize, IsWhatIsNeededUntilRoomIsTight) {
  BatchSize batch;
  EXPECT_EQ(batch.Next(10, 10, 1000), 0u);
  EXPECT_EQ(batch.pressure(), 0.0);
  EXPECT_EQ(batch.Next(10, 4, 1000), 6u) << "one request of many";
  uint64_t before = 6;
  for (int i = 0; i < 200; ++i) {
    const uint64_t now = batch.Next(10, 4, 1000);
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_GE(before, 6u + 9) << "the next request's need in advance";
  EXPECT_LE(before, 6u + 10);
  EXPECT_EQ(batch.Next(10, 4, 16), 6u + 2) << "an eighth of a small cache";
  for (int i = 0; i < 200; ++i) EXPECT_EQ(batch.Next(10, 10, 1000), 0u);
  EXPECT_EQ(batch.Next(10, 4, 1000), 6u) << "calm again";
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

// LRU used as the cache uses it: a tree of blocks, leases on paths from its root, eviction of
// victims.

constexpr uint32_t kNoParent = UINT32_MAX;

class Cache {
 public:
  void Step() {
    switch (*rc::gen::weightedElement<int>({{3, 0}, {3, 1}, {4, 2}, {2, 3}})) {
      case 0: return Lease();
      case 1: return Publish();
      case 2: return EndLease();
      default: return Evict();
    }
  }

  void Check() const {
    RC_ASSERT(lru_.size() == order_.size());
    RC_ASSERT(lru_.Victim().has_value() == !order_.empty());
    if (order_.empty()) return;
    const uint32_t victim = lru_.Victim()->number();
    RC_ASSERT(victim == order_.front());
    // The promise of policy.h: the victim is a leaf without leases.
    RC_ASSERT(blocks_[victim].leases == 0u);
    for (const Block& block : blocks_) RC_ASSERT(!block.present || block.parent != victim);
  }

  void Finish() {
    while (!leases_.empty()) EndLease();
    while (!order_.empty()) {
      Check();
      Evict();
    }
    Check();
    RC_ASSERT(std::ranges::none_of(blocks_, &Block::present));
  }

 private:
  struct Block {
    bool present = false;
    uint32_t parent = kNoParent;
    uint32_t leases = 0;
  };

  // Pins a random present block and everything above it, first block first.
  void Lease() {
    std::vector<uint32_t> path;
    for (uint32_t at = SomePresent(); at != kNoParent; at = blocks_[at].parent) path.push_back(at);
    std::ranges::reverse(path);
    for (uint32_t block : path) Pin(block);
    leases_.push_back(path);
  }

  // A lease grows by one new block; it is published leased.
  void Publish() {
    if (leases_.empty()) return;
    auto& lease = leases_[*rc::gen::inRange<size_t>(0, leases_.size())];
    const auto unused = std::ranges::find(blocks_, false, &Block::present);
    const auto number = static_cast<uint32_t>(unused - blocks_.begin());
    if (unused == blocks_.end()) blocks_.emplace_back();
    blocks_[number] = {true, lease.empty() ? kNoParent : lease.back(), 1};
    lease.push_back(number);
  }

  void EndLease() {
    if (leases_.empty()) return;
    const auto lease = leases_.begin() + *rc::gen::inRange<size_t>(0, leases_.size());
    std::ranges::reverse(*lease);  // deepest first
    for (uint32_t block : *lease) {
      if (--blocks_[block].leases > 0) continue;
      lru_.Add(BlockId(block));
      order_.push_back(block);
    }
    leases_.erase(lease);
  }

  void Evict() {
    const auto victim = lru_.Victim();
    if (!victim) return;
    lru_.Remove(*victim);
    order_.pop_front();
    blocks_[victim->number()].present = false;
  }

  void Pin(uint32_t block) {
    if (blocks_[block].leases++ > 0) return;
    lru_.Remove(BlockId(block));
    order_.remove(block);
  }

  uint32_t SomePresent() const {
    std::vector<uint32_t> present = {kNoParent};
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].present) present.push_back(i);
    }
    return present[*rc::gen::inRange<size_t>(0, present.size())];
  }

  LruPolicy lru_;
  std::list<uint32_t> order_;  // the judge: evictable blocks, oldest first
  std::vector<Block> blocks_;  // by id
  std::vector<std::vector<uint32_t>> leases_;
};

RC_GTEST_PROP(LruProperty, EqualsAListAndEvictsOnlyLeaves, ()) {
  Cache cache;
  for (int step = 0; step < 150; ++step) {
    cache.Step();
    cache.Check();
  }
  cache.Finish();
}

}  // namespace
}  // namespace quire::evict

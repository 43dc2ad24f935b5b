// LFU, S3-FIFO and ARC on orders that can be worked out by hand; tests/suite has more.
#include "evict/baselines/baselines.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "evict/policies.h"
#include "evict/test_drain.h"

namespace quire::evict {
namespace {

void Use(Policy& policy, uint32_t block, uint64_t key) {
  policy.Remove(BlockId(block));
  policy.Add(BlockId(block), {.key = key});
}

TEST(Baselines, AreNoPoliciesOfACache) {
  for (const std::string_view name : BaselineNames()) {
    EXPECT_EQ(MakeBaseline(name)->name(), name);
    EXPECT_EQ(MakePolicy(name), nullptr) << name;
  }
  for (const std::string_view name : PolicyNames()) EXPECT_EQ(MakeBaseline(name), nullptr) << name;
  EXPECT_EQ(MakeBaseline("mru"), nullptr);
}

// As the header says.
TEST(Baselines, SayWhatABlockCostsAndWhatTheyHear) {
  struct Case {
    std::string_view name;
    uint64_t bytes;
    bool history;
  };
  for (const auto& [name, bytes, history] :
       {Case{"lfu", 120, false}, Case{"s3fifo", 128, true}, Case{"arc", 112, true}}) {
    const auto policy = MakeBaseline(name);
    EXPECT_EQ(policy->bytes_per_block(), bytes) << name;
    EXPECT_EQ(policy->has_history(), history) << name;
    EXPECT_FALSE(policy->hears_requests() || policy->heeds_priorities() || policy->hears_time());
  }
}

RC_GTEST_PROP(LfuProperty, EqualsASearchForTheFewestUses, ()) {
  LfuPolicy policy;
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> judge;  // block: uses, last
  for (uint64_t step = 1; step < 150; ++step) {
    const auto block = *rc::gen::inRange<uint32_t>(0, 20);
    if (judge.contains(block)) policy.Remove(BlockId(block));
    policy.Add(BlockId(block), {.key = block + uint64_t{1}});
    judge[block] = {judge[block].first + 1, step};
    const auto first =
        std::ranges::min_element(judge, {}, [](const auto& entry) { return entry.second; });
    RC_ASSERT(policy.Victim() == BlockId(first->first));
    if (*rc::gen::inRange(0, 3) > 0) continue;
    policy.Evict(BlockId(first->first));
    judge.erase(first);
  }
}

TEST(Lfu, AnIdThatNamesAnotherBlockBeginsAgain) {
  LfuPolicy policy;
  for (uint32_t block = 0; block < 3; ++block) policy.Add(BlockId(block), {.key = 1 + block});
  for (int use = 0; use < 5; ++use) Use(policy, 0, 1);
  Use(policy, 1, 2);
  Use(policy, 0, 99);
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{2, 0, 1}));
  policy.Add(BlockId(1), {.key = 2});
  policy.Add(BlockId(2), {.key = 3});
  EXPECT_EQ(Drain(policy), (std::vector<uint32_t>{1, 2})) << "what was evicted begins again";
}

TEST(S3Fifo, AScanLeavesTheMainQueueAlone) {
  S3FifoPolicy policy;
  for (uint32_t block = 0; block < 10; ++block) policy.Add(BlockId(block), {.key = 1 + block});
  for (int use = 0; use < 3; ++use) {
    for (uint32_t block = 0; block < 5; ++block) Use(policy, block, 1 + block);
  }
  for (uint64_t i = 0; i < 100; ++i) {
    const BlockId victim = policy.Victim().value();
    EXPECT_GE(victim.number(), 5u) << "used again and again";
    policy.Evict(victim);
    policy.Add(victim, {.key = 1000 + i});
  }
}

TEST(S3Fifo, WhatComesBackSoonGoesToTheMainQueue) {
  S3FifoPolicy policy;
  for (uint32_t block = 0; block < 10; ++block) policy.Add(BlockId(block), {.key = 1 + block});
  policy.Evict(BlockId(0));
  policy.Add(BlockId(0), {.key = 1});
  for (uint32_t i = 0; i < 9; ++i) {
    EXPECT_NE(policy.Victim(), BlockId(0));
    policy.Evict(*policy.Victim());
  }
  EXPECT_EQ(policy.Victim(), BlockId(0));
}

TEST(Arc, AScanLeavesWhatIsUsedOftenAlone) {
  ArcPolicy policy;
  for (uint32_t block = 0; block < 10; ++block) policy.Add(BlockId(block), {.key = 1 + block});
  for (uint32_t block = 0; block < 5; ++block) Use(policy, block, 1 + block);
  for (uint64_t i = 0; i < 100; ++i) {
    const BlockId victim = policy.Victim().value();
    EXPECT_GE(victim.number(), 5u);
    policy.Evict(victim);
    policy.Add(victim, {.key = 1000 + i});
  }
}

TEST(Arc, EvictedTooEarlyMakesItsListLarger) {
  ArcPolicy policy;
  for (uint32_t block = 0; block < 4; ++block) policy.Add(BlockId(block), {.key = 1 + block});
  Use(policy, 3, 4);  // often: 3, once: 0 1 2
  for (uint64_t key = 1; key <= 2; ++key) {
    const BlockId victim = policy.Victim().value();
    EXPECT_EQ(victim, BlockId(static_cast<uint32_t>(key - 1)));
    policy.Evict(victim);
    policy.Add(victim, {.key = key});  // comes back at once
  }
  // The list `once` deserves two now and has one: the least recent of the others goes.
  EXPECT_EQ(policy.Victim(), BlockId(3));
}

}  // namespace
}  // namespace quire::evict

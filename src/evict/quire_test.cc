#include "evict/quire.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <unordered_map>

#include "base/prng.h"
#include "evict/classic_policies.h"

namespace quire::evict {
namespace {

// A cache of paths without branches: a request is a number, its blocks are its own.
class Service {
 public:
  Service(Policy& policy, uint64_t capacity_blocks) : policy_(policy), capacity_(capacity_blocks) {}

  // Returns the blocks hit.
  uint32_t Request(uint64_t path, uint32_t blocks, uint64_t now_ms, uint64_t output_tokens) {
    std::vector<uint64_t> keys;
    for (uint32_t i = 0; i < blocks; ++i) keys.push_back(Prng(path * 1000 + i).Next64());
    uint32_t hits = 0;
    while (hits < blocks && ids_.contains(keys[hits])) ++hits;
    for (uint32_t i = 0; i < hits; ++i) policy_.Remove(ids_[keys[i]]);
    policy_.Advance(now_ms);
    for (uint32_t i = hits; i < blocks; ++i) ids_[keys[i]] = NewId(keys[i]);
    policy_.Begin({.time_ms = now_ms,
                   .keys = keys,
                   .prompt_tokens = blocks * uint64_t{16},
                   .output_tokens = output_tokens,
                   .asked_blocks = blocks,
                   .hit_blocks = hits});
    for (uint32_t i = blocks; i-- > 0;) {
      policy_.Add(
          ids_[keys[i]],
          {.key = keys[i], .parent = i == 0 ? BlockId::None() : ids_[keys[i - 1]], .depth = i});
    }
    policy_.End();
    return hits;
  }

 private:
  BlockId NewId(uint64_t key) {
    if (keys_.size() < capacity_) {
      keys_.push_back(key);
      return BlockId(static_cast<uint32_t>(keys_.size() - 1));
    }
    const BlockId victim = policy_.Victim().value();
    policy_.Evict(victim);
    ids_.erase(keys_[victim.number()]);
    keys_[victim.number()] = key;
    return victim;
  }

  Policy& policy_;
  const uint64_t capacity_;
  std::vector<uint64_t> keys_;  // by block id
  std::unordered_map<uint64_t, BlockId> ids_;
};

// Long answers are read and continued, short ones are not; continued ones come back after more
// blocks than fit.
uint64_t HitsOfReaders(Policy& policy) {
  Service service(policy, 1000);
  Prng prng(4);
  uint64_t hits = 0;
  std::deque<uint64_t> returning;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const bool returns = prng.NextChance(4);
    hits += service.Request(i, 8, i * 100, returns ? 500 : 5);
    if (returns) returning.push_back(i);
    if (returning.size() > 60) {
      hits += service.Request(returning.front(), 8, i * 100, 5);
      returning.pop_front();
    }
  }
  return hits;
}

TEST(QuirePolicy, LearnsWhichPathsReturn) {
  LruPolicy lru;
  QuirePolicy quire;
  EXPECT_EQ(HitsOfReaders(lru), 0u);
  EXPECT_GT(HitsOfReaders(quire), 20'000u) << "of about 40,000 blocks that return";
}

TEST(QuirePolicy, IsRecencyWithoutFacts) {
  LruPolicy lru;
  QuirePolicy quire;
  Prng prng(1);
  std::vector<bool> present(300);
  for (int step = 0; step < 20'000; ++step) {
    const auto number = static_cast<uint32_t>(prng.NextBelow(present.size()));
    for (Policy* policy : {static_cast<Policy*>(&lru), static_cast<Policy*>(&quire)}) {
      if (present[number]) policy->Remove(BlockId(number));
      policy->Add(BlockId(number));
    }
    present[number] = true;
    if (!prng.NextChance(3)) continue;
    ASSERT_EQ(quire.Victim(), lru.Victim());
    const BlockId victim = *lru.Victim();
    lru.Evict(victim);
    quire.Evict(victim);
    present[victim.number()] = false;
  }
}

// Paths by popularity, all at one moment.
uint64_t HitsOfPopularPaths(Policy& policy, uint64_t now_ms) {
  Service service(policy, 200);
  Prng prng(5);
  uint64_t hits = 0;
  for (int i = 0; i < 30'000; ++i) {
    const uint64_t path = prng.NextBelow(1 + prng.NextBelow(300));
    hits += service.Request(path, 4, now_ms, 10);
  }
  EXPECT_EQ(policy.size(), 200u);
  return hits;
}

// Every age is 0 then, which tells the model nothing: it must neither fail nor do harm.
TEST(QuirePolicy, TimeMayStandStill) {
  for (const uint64_t now_ms : {uint64_t{0}, uint64_t{5000}, UINT64_MAX / 2}) {
    LruPolicy lru;
    QuirePolicy quire;
    const auto by_recency = static_cast<double>(HitsOfPopularPaths(lru, now_ms));
    EXPECT_GT(by_recency, 20'000);
    EXPECT_GT(static_cast<double>(HitsOfPopularPaths(quire, now_ms)), 0.99 * by_recency)
        << "at " << now_ms;
  }
}

TEST(QuirePolicy, IsRecencyWithoutMemoryToLearn) {
  LruPolicy lru;
  QuirePolicy quire;
  quire.SetHistory(64 << 10);
  EXPECT_EQ(HitsOfReaders(quire), HitsOfReaders(lru));
  QuirePolicy nearly;
  nearly.SetHistory(160 << 10);
  EXPECT_EQ(HitsOfReaders(nearly), 0u);
  QuirePolicy paid;
  paid.SetHistory(320 << 10);
  EXPECT_GT(HitsOfReaders(paid), 20'000u);
}

// What no request adds keeps the class that its last request gave it, and is recent.
TEST(QuirePolicy, BlocksAddedOutsideARequestKeepTheirClass) {
  QuirePolicy quire;
  HitsOfReaders(quire);  // 1,000 blocks; the model leads
  const BlockId first = quire.Victim().value();
  quire.Remove(first);
  quire.Add(first, {.key = 1});
  EXPECT_NE(quire.Victim(), first) << "the most recent of its class";
}

}  // namespace
}  // namespace quire::evict

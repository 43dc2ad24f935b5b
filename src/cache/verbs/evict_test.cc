// The order of eviction, the blocks that are never evicted, and that the same calls give the same
// cache.
#include <gtest/gtest.h>

#include <map>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

// Three prompts of two blocks each, used in the order given, nothing held.
struct ThreeUses {
  explicit ThreeUses(const std::string& order) {
    for (const char name : order) cache.Run(prompts.at(name)).reset();
  }
  // Blocks of each prompt after evicting `blocks`.
  std::string LeftAfter(uint64_t blocks) {
    EXPECT_EQ(cache.cache->Evict(blocks), blocks);
    std::string left;
    for (const auto& [name, prompt] : prompts) {
      left += std::to_string(cache.Resident(Join(prompt, SomeTokens(1, 9))) / kBlock);
    }
    return left;
  }

  TestCache cache{20};
  std::map<char, std::vector<TokenId>> prompts = {{'a', SomeTokens(2 * kBlock, 1)},
                                                  {'b', SomeTokens(2 * kBlock, 2)},
                                                  {'c', SomeTokens(2 * kBlock, 3)}};
};

TEST(Evict, LeastRecentlyUsedFirstAndLeavesBeforeTheirParents) {
  const std::vector<std::string> expected = {"222", "122", "022", "012", "002", "001", "000"};
  for (uint64_t evicted = 0; evicted < expected.size(); ++evicted) {
    EXPECT_EQ(ThreeUses("abc").LeftAfter(evicted), expected[evicted]);
  }
}

TEST(Evict, AUseMakesRecent) {
  // The second use of `a` reuses one block, because a token must be computed, and finds the other
  // when it publishes it.
  const std::vector<std::string> expected = {"222", "212", "202", "201", "200"};
  for (uint64_t evicted = 0; evicted < expected.size(); ++evicted) {
    EXPECT_EQ(ThreeUses("abca").LeftAfter(evicted), expected[evicted]);
  }
  EXPECT_EQ(ThreeUses("cbab").LeftAfter(3), "120");
}

TEST(Evict, APlanIsAUse) {
  ThreeUses uses("abc");
  uses.cache.Resident(Join(uses.prompts.at('a'), SomeTokens(1, 9)));
  EXPECT_EQ(uses.LeftAfter(2), "202");
}

TEST(Evict, LeasedBlocksNeverGo) {
  TestCache cache(10);
  const auto held = SomeTokens(2 * kBlock + 5, 1);
  const auto loose = Join(std::span(held).first(kBlock), SomeTokens(2 * kBlock, 2));
  const auto sequence = cache.Run(held);
  cache.Run(loose).reset();
  EXPECT_EQ(cache.cache->stats().evictable_blocks, 2u);
  EXPECT_EQ(cache.cache->Evict(100), 2u);
  EXPECT_EQ(cache.cache->Evict(100), 0u);
  EXPECT_EQ(cache.cache->stats().evicted_total, 2u);
  EXPECT_EQ(cache.model.Differs(*sequence, held), "");
  EXPECT_EQ(cache.Resident(held), 2u * kBlock);
}

TEST(Evict, APlanPinsWhatItFound) {
  TestCache cache(4);
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  cache.Run(prompt).reset();
  Plan plan = cache.Acquire(prompt);
  EXPECT_EQ(cache.cache->Evict(100), 0u);
  EXPECT_FALSE(cache.TryOpen(SomeTokens(3 * kBlock, 2)).has_value());
  const auto sequence = Must(cache.cache->Open(std::move(plan), {}));
  EXPECT_EQ(sequence->length(), 2u * kBlock);
  EXPECT_EQ(cache.model.Differs(*sequence, std::span(prompt).first(2 * kBlock)), "");
}

TEST(Evict, RoomIsMadeOnlyWhenThatMakesItFit) {
  TestCache cache(6);
  const auto prompt = SomeTokens(3 * kBlock, 1);
  cache.Run(prompt).reset();
  const auto holder = cache.Open(SomeTokens(2 * kBlock, 2));
  ASSERT_FALSE(cache.TryOpen(SomeTokens(5 * kBlock, 3)).has_value());
  EXPECT_EQ(cache.cache->stats().evicted_total, 0u);
  const auto fits = cache.Open(SomeTokens(2 * kBlock, 3));  // one free, one evicted
  EXPECT_EQ(cache.cache->stats().evicted_total, 1u);
  EXPECT_EQ(cache.Resident(Join(prompt, prompt)), 2u * kBlock);
}

// A block that was published below another sequence's block, and is held by a view alone: the view
// does not hold the parent, but the parent must not be evicted first.
TEST(Evict, ALeasedBlockKeepsItsWholePath) {
  TestCache cache(10);
  const auto tokens = SomeTokens(2 * kBlock, 1);
  auto slow = cache.Open(tokens);
  for (uint32_t layer : {0u, 1u}) Must(cache.model.AppendLayer(*slow, layer, tokens));
  auto view = std::make_unique<BlockListView>(Must(slow->View(0, StreamRole::kKey)));
  auto fast = cache.Run(std::span(tokens).first(kBlock));  // publishes the first block
  Must(slow->Commit(tokens));
  EXPECT_EQ(cache.cache->stats().deduplicated_total, 1u);
  slow.reset();
  fast.reset();
  EXPECT_EQ(cache.cache->Evict(10), 0u);
  EXPECT_EQ(cache.Resident(Join(tokens, tokens)), 2u * kBlock);
  view.reset();
  EXPECT_EQ(cache.cache->Evict(10), 2u);
  EXPECT_EQ(cache.slots_used(), 0u);
}

// One run of a random history: the cache's whole state as text, after every step.
std::vector<std::string> History(uint64_t seed) {
  TestCache cache(12);
  Prng prng(seed);
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t i = 0; i < 6; ++i) {
    prompts.push_back(Join(SomeTokens(kBlock * (1 + i % 2), 50 + i % 3), SomeTokens(20, i)));
  }
  std::vector<std::unique_ptr<Sequence>> open;
  std::vector<std::string> log;
  for (int step = 0; step < 300; ++step) {
    const auto& prompt = prompts[prng.NextBelow(prompts.size())];
    switch (prng.NextBelow(4)) {
      case 0:
      case 1:
        if (auto opened = cache.TryOpen(prompt)) {
          Must(cache.model.Feed(**opened, prompt));
          open.push_back(*std::move(opened));
        }
        break;
      case 2:
        if (!open.empty()) open.erase(open.begin() + prng.NextBelow(open.size()));
        break;
      default: cache.cache->Evict(prng.NextBelow(3));
    }
    const CacheStats stats = cache.cache->stats();
    EXPECT_LE(stats.hot_bytes_used, stats.hot_bytes_limit);
    EXPECT_EQ(SlotCharges(stats), stats.sealed.slots_used * cache.charge_bytes);
    log.push_back(ToJson(stats) + cache.cache->BlockMap());
  }
  EXPECT_GT(cache.cache->stats().evicted_total, 10u);
  EXPECT_GT(cache.cache->stats().refused_total, 10u);
  return log;
}

TEST(Evict, TheSameCallsGiveTheSameCache) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    // Other allocations in between, so that addresses differ.
    const auto first = History(seed);
    const auto noise = std::make_unique<std::vector<char>>(100'000);
    EXPECT_EQ(first, History(seed));
  }
}

TEST(Evict, TheBlockMapShowsStates) {
  TestCache cache(8);
  const auto kept = cache.Run(SomeTokens(kBlock + 3, 1));
  cache.Run(SomeTokens(kBlock, 2)).reset();
  EXPECT_EQ(cache.cache->BlockMap(), "0  Sps.....\n");
  const std::vector<FreeRuns> runs = cache.cache->FreeSlots();
  ASSERT_EQ(runs.size(), 1);
  EXPECT_EQ(runs[0].slots, "sealed");
  EXPECT_EQ(runs[0].free_slots, 5);
  EXPECT_EQ(runs[0].largest, 5);
  EXPECT_EQ(runs[0].fragmentation(), 0);
}

}  // namespace
}  // namespace quire::cache

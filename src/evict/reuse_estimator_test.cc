#include "evict/reuse_estimator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <vector>

#include "base/prng.h"

namespace quire::evict {
namespace {

using Path = std::vector<uint64_t>;

// LRU of one size, block by block; a request's first block ends as the most recent.
double LruHitRatio(const std::vector<Path>& requests, uint64_t capacity_blocks) {
  std::list<uint64_t> recent;  // most recent first
  std::map<uint64_t, std::list<uint64_t>::iterator> places;
  uint64_t hits = 0;
  uint64_t uses = 0;
  for (const Path& path : requests) {
    uses += path.size();
    for (const uint64_t key : path) hits += places.contains(key) ? 1 : 0;
    for (size_t i = path.size(); i-- > 0;) {
      if (const auto place = places.find(path[i]); place != places.end())
        recent.erase(place->second);
      recent.push_front(path[i]);
      places[path[i]] = recent.begin();
    }
    for (; recent.size() > capacity_blocks; recent.pop_back()) places.erase(recent.back());
  }
  return static_cast<double>(hits) / static_cast<double>(uses);
}

uint64_t KeyOf(uint64_t block) { return Prng(block).Next64(); }

// Conversations behind three system prompts; turns come back soon, later or never.
std::vector<Path> Chats(uint64_t requests_count) {
  Prng prng(11);
  std::vector<Path> open;
  std::vector<Path> requests;
  uint64_t next_block = 1000;
  while (requests.size() < requests_count) {
    if (open.empty() || prng.NextChance(3)) {
      const uint64_t system = prng.NextBelow(3);
      Path path;
      for (uint64_t i = 0; i < 2 + 6 * system; ++i) path.push_back(KeyOf(system * 100 + i));
      open.push_back(path);
    }
    const uint64_t back = prng.NextBelow(1 + prng.NextBelow(open.size()));
    const auto chat = open.end() - 1 - static_cast<int64_t>(back);
    for (uint64_t i = 1 + prng.NextBelow(5); i > 0; --i) chat->push_back(KeyOf(next_block++));
    requests.push_back(*chat);
    if (prng.NextChance(4)) open.erase(chat);
  }
  return requests;
}

TEST(ReuseEstimator, IsEmptyAtFirst) {
  const ReuseEstimator reuse;
  EXPECT_EQ(reuse.HitRatio(1000), 0.0);
  EXPECT_EQ(reuse.scale(), 1.0);
}

TEST(ReuseEstimator, IsExactWhileEverythingIsSampled) {
  const auto requests = Chats(3000);
  ReuseEstimator reuse(1 << 20);
  for (const Path& path : requests) reuse.Use(path);
  // Sizes where a bucket begins.
  for (const uint64_t capacity : {1, 5, 16, 24, 64, 112, 256, 1024, 2048, 4096, 1 << 20}) {
    EXPECT_NEAR(reuse.HitRatio(capacity), LruHitRatio(requests, capacity), 1e-12) << capacity;
  }
}

TEST(ReuseEstimator, MomentsRunOutAndBeginAgain) {
  ReuseEstimator reuse(64);
  ReuseEstimator roomy(1 << 16);
  Prng prng(2);
  for (int i = 0; i < 10'000; ++i) {
    const Path path = {KeyOf(prng.NextBelow(60))};
    reuse.Use(path);
    roomy.Use(path);
  }
  for (uint64_t capacity = 1; capacity < 64; ++capacity) {
    EXPECT_EQ(reuse.HitRatio(capacity), roomy.HitRatio(capacity));
  }
}

TEST(ReuseEstimator, CountsTheSameInPieces) {
  ReuseEstimator whole(512);
  ReuseEstimator in_pieces(512);
  Prng prng(3);
  for (const Path& path : Chats(3000)) {
    const uint64_t asked = prng.NextBelow(path.size() + 1);
    whole.Use(path, asked);
    const uint64_t piece = 1 + prng.NextBelow(8);
    const auto keys = std::span<const uint64_t>(path);
    for (uint64_t i = 0; i < asked; i += piece) {
      in_pieces.CountAsked(keys.subspan(i, std::min(piece, asked - i)));
    }
    for (uint64_t end = path.size(); end > 0; end -= std::min(piece, end)) {
      in_pieces.Touch(keys.first(end).last(std::min(piece, end)));
    }
  }
  EXPECT_GT(whole.scale(), 1.0);
  EXPECT_EQ(in_pieces.scale(), whole.scale());
  EXPECT_EQ(in_pieces.uses(), whole.uses());
  for (uint64_t capacity = 1; capacity < 20'000; capacity += capacity) {
    EXPECT_EQ(in_pieces.HitRatio(capacity), whole.HitRatio(capacity)) << capacity;
  }
}

TEST(ReuseEstimator, ASampleIsCloseToExact) {
  const auto requests = Chats(20'000);
  ReuseEstimator reuse(2048);
  ReuseEstimator again(2048);
  for (const Path& path : requests) reuse.Use(path);
  for (const Path& path : requests) again.Use(path);
  EXPECT_EQ(reuse.samples(), 2048u);
  EXPECT_GT(reuse.scale(), 10.0);
  double worst = 0;
  for (const uint64_t capacity : {500, 1000, 2000, 4000, 8000, 16'000, 32'000}) {
    const double exact = LruHitRatio(requests, capacity);
    worst = std::max(worst, std::abs(reuse.HitRatio(capacity) - exact));
    EXPECT_EQ(reuse.HitRatio(capacity), again.HitRatio(capacity));
  }
  EXPECT_LT(worst, 0.03);
}

TEST(ReuseEstimator, KeepsAsManySamplesAsItMay) {
  const auto requests = Chats(20'000);
  const auto half = requests.begin() + 10'000;
  ReuseEstimator reuse(2048);
  ReuseEstimator small(256);
  std::for_each(requests.begin(), half, [&](const Path& path) { reuse.Use(path); });
  std::for_each(requests.begin(), half, [&](const Path& path) { small.Use(path); });
  reuse.SetCapacity(256);
  EXPECT_EQ(reuse.samples(), 256u);
  EXPECT_EQ(reuse.scale(), small.scale()) << "the lowest keys are kept, whoever was there before";
  for (auto path = half; path != requests.end(); ++path) {
    reuse.Use(*path);
    small.Use(*path);
    ASSERT_EQ(reuse.samples(), small.samples());
    ASSERT_EQ(reuse.scale(), small.scale());
  }
  // Later estimates differ from those of a sample that always was so small only by the earlier
  // uses.
  EXPECT_NEAR(reuse.HitRatio(4000), LruHitRatio(requests, 4000), 0.06);
  reuse.SetCapacity(1024);
  EXPECT_EQ(reuse.samples(), 256u) << "more of those to come";
  Prng prng(3);
  for (int i = 0; i < 3000; ++i) {
    const uint64_t low = prng.NextBelow(static_cast<uint64_t>(0x1p64 / reuse.scale()));
    reuse.Use(Path{low});
  }
  EXPECT_EQ(reuse.samples(), 1024u);
}

// The samples of other accounts may need the memory then.
TEST(ReuseEstimator, FewerSamplesTakeLessMemory) {
  ReuseEstimator reuse(2048);
  for (const Path& path : Chats(2000)) reuse.Use(path);
  EXPECT_GT(reuse.moments_bytes(), 2048u * 16);
  reuse.SetCapacity(100);
  EXPECT_LE(reuse.moments_bytes(), 101u * 16);
  for (const Path& path : Chats(100)) reuse.Use(path);
  EXPECT_LE(reuse.moments_bytes(), 101u * 16);
  EXPECT_GT(reuse.HitRatio(1000), 0.1);
}

// Half of each path is new: no request asked whether it was there.
TEST(ReuseEstimator, OnlyWhatWasAskedForCounts) {
  ReuseEstimator reuse;
  reuse.Use(Path{1, 2, 3, 4}, 2);
  EXPECT_EQ(reuse.uses(), 2u);
  EXPECT_EQ(reuse.HitRatio(100), 0.0);
  reuse.Use(Path{1, 2, 3, 4}, 3);
  EXPECT_EQ(reuse.uses(), 5u);
  EXPECT_DOUBLE_EQ(reuse.HitRatio(100), 0.6);
  EXPECT_EQ(reuse.HitRatio(0), 0.0);
}

TEST(ReuseEstimator, LargerCachesHitNoLess) {
  ReuseEstimator reuse(256);
  for (const Path& path : Chats(4000)) reuse.Use(path);
  for (uint64_t capacity = 1; capacity < 100'000; capacity = capacity * 5 / 4 + 1) {
    EXPECT_LE(reuse.HitRatio(capacity), reuse.HitRatio(capacity * 5 / 4 + 1));
  }
}

}  // namespace
}  // namespace quire::evict

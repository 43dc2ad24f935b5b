#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "evict/leaf_order.h"

namespace quire::evict {
namespace {

constexpr uint32_t kQueues = 3;
constexpr uint32_t kBlocks = 40;

struct Naive {
  BlockId parent;
  Rank rank;
};

using Judge = std::map<uint32_t, Naive>;  // by block

// The leaves of a queue, or of all for kQueues, first one first.
std::vector<uint32_t> Leaves(const Judge& judge, uint32_t queue) {
  std::vector<uint32_t> leaves;
  for (const auto& [block, entry] : judge) {
    const bool is_parent = std::ranges::any_of(
        judge, [&](const auto& other) { return other.second.parent == BlockId(block); });
    if (!is_parent && (queue == kQueues || entry.rank.queue == queue)) leaves.push_back(block);
  }
  std::ranges::sort(leaves, {}, [&](uint32_t block) { return judge.at(block).rank; });
  return leaves;
}

std::optional<BlockId> Block(const LeafOrder::Leaf* leaf) {
  return leaf != nullptr ? std::optional(leaf->block) : std::nullopt;
}

void Check(const LeafOrder& order, const Judge& judge) {
  RC_ASSERT(order.size() == judge.size());
  for (uint32_t queue = 0; queue <= kQueues; ++queue) {
    const auto leaves = Leaves(judge, queue);
    const auto first = leaves.empty() ? std::nullopt : std::optional(BlockId(leaves.front()));
    const auto last = leaves.empty() ? std::nullopt : std::optional(BlockId(leaves.back()));
    if (queue == kQueues) {
      RC_ASSERT(order.First() == first);
    } else {
      RC_ASSERT(Block(order.FirstOf(queue)) == first);
      RC_ASSERT(Block(order.LastOf(queue)) == last);
    }
  }
  for (const auto& [block, entry] : judge) RC_ASSERT(order.rank(BlockId(block)) == entry.rank);
}

// Stamps often follow one another from child to parent, as policies give them; a block may be
// added before its parent or after it.
RC_GTEST_PROP(LeafOrderProperty, EqualsASearchOfAllBlocks, ()) {
  LeafOrder order(kQueues);
  Judge judge;
  uint64_t stamp = 0;
  for (int step = 0; step < 120; ++step) {
    const auto block = *rc::gen::inRange<uint32_t>(0, kBlocks);
    const Rank rank = {.queue = *rc::gen::inRange<uint32_t>(0, kQueues),
                       .weight = *rc::gen::inRange<uint64_t>(0, 2),
                       .stamp = stamp += *rc::gen::inRange<uint64_t>(1, 3)};
    if (!judge.contains(block)) {
      // Half of the blocks are the parent of two others each: no cycles.
      const BlockId parent = block == 0 ? BlockId::None() : BlockId((block - 1) / 2);
      order.Add(BlockId(block), parent, rank);
      judge[block] = {parent, rank};
    } else if (*rc::gen::arbitrary<bool>()) {
      order.Move(BlockId(block), rank);
      judge[block].rank = rank;
    } else {
      order.Remove(BlockId(block));
      judge.erase(block);
    }
    Check(order, judge);
  }
  while (const auto first = order.First()) {
    order.Remove(*first);
    judge.erase(first->number());
    Check(order, judge);
  }
}

// The whole path of a request at once: what evicting from its end does.
RC_GTEST_PROP(LeafOrderProperty, PathsLeaveFromTheirEnds, ()) {
  LeafOrder order(kQueues);
  Judge judge;
  uint64_t stamp = 0;
  const auto paths = *rc::gen::inRange<uint32_t>(1, 4);
  const auto blocks = *rc::gen::inRange<uint32_t>(1, 8);
  for (uint32_t path = 0; path < paths; ++path) {
    for (uint32_t depth = blocks; depth-- > 0;) {
      const BlockId block(path * blocks + depth);
      const BlockId parent = depth == 0 ? BlockId::None() : BlockId(block.number() - 1);
      const Rank rank = {.queue = 0, .weight = 0, .stamp = ++stamp};
      order.Add(block, parent, rank);
      judge[block.number()] = {parent, rank};
    }
  }
  while (!judge.empty()) {
    const BlockId gone = *rc::gen::arbitrary<bool>() ? *order.First() : order.LastOf(0)->block;
    order.Remove(gone);
    judge.erase(gone.number());
    Check(order, judge);
  }
}

TEST(LeafOrder, KnowsWhereABlockStood) {
  LeafOrder order(kQueues);
  const Rank rank = {.queue = 2, .weight = 7, .stamp = 5};
  EXPECT_EQ(order.FormerRank(BlockId(3)), std::nullopt);
  order.Add(BlockId(3), BlockId(1), rank);
  EXPECT_EQ(order.FormerRank(BlockId(1)), std::nullopt) << "a parent that was never here";
  EXPECT_EQ(order.Remove(BlockId(3)), BlockId(1));
  EXPECT_EQ(order.FormerRank(BlockId(3)), rank);
  order.Forget(BlockId(3));
  EXPECT_EQ(order.FormerRank(BlockId(3)), std::nullopt);
  EXPECT_FALSE(order.contains(BlockId(3)));
}

// A caller that remembers what a queue offered looks again when the version has moved.
TEST(LeafOrder, AQueueWithOtherLeavesHasAnotherVersion) {
  LeafOrder order(kQueues);
  std::vector<uint64_t> versions(kQueues);
  const auto moved = [&] {
    std::vector<uint32_t> queues;
    for (uint32_t queue = 0; queue < kQueues; ++queue) {
      if (std::exchange(versions[queue], order.version(queue)) != order.version(queue)) {
        queues.push_back(queue);
      }
    }
    return queues;
  };
  using Queues = std::vector<uint32_t>;
  order.Add(BlockId(2), BlockId(1), {.queue = 1, .weight = 0, .stamp = 1});
  EXPECT_EQ(moved(), Queues{1});
  order.Add(BlockId(1), BlockId(0), {.queue = 1, .weight = 0, .stamp = 2});
  EXPECT_EQ(moved(), Queues{}) << "no leaf";
  order.Add(BlockId(0), BlockId::None(), {.queue = 2, .weight = 0, .stamp = 3});
  EXPECT_EQ(moved(), Queues{});
  order.Remove(BlockId(2));
  EXPECT_EQ(moved(), Queues{1}) << "its parent took its place";
  order.Move(BlockId(1), {.queue = 0, .weight = 0, .stamp = 4});
  EXPECT_EQ(moved(), (Queues{0, 1}));
  order.Remove(BlockId(1));
  EXPECT_EQ(moved(), (Queues{0, 2}));
}

}  // namespace
}  // namespace quire::evict

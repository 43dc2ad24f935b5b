#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

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

}  // namespace
}  // namespace quire::evict

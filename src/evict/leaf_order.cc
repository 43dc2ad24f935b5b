#include "evict/leaf_order.h"

#include <iterator>
#include <utility>

#include "base/check.h"

namespace quire::evict {

// Chunks are small, so that little of the last one is unused.
LeafOrder::Table::Table()
    : memory({.max_blocks_per_chunk = 64, .largest_required_pool_block = 64}) {}

LeafOrder::LeafOrder(uint32_t queues) : LeafOrder(queues, std::make_shared<Table>()) {}

LeafOrder::LeafOrder(uint32_t queues, const LeafOrder& sibling)
    : LeafOrder(queues, sibling.table_) {}

LeafOrder::LeafOrder(uint32_t queues, std::shared_ptr<Table> table)
    : table_(std::move(table)), entries_(table_->entries), versions_(queues) {
  leaves_.reserve(queues);
  for (uint32_t i = 0; i < queues; ++i) leaves_.emplace_back(&table_->memory);
}

// Most blocks are added as the newest of their queue.
void LeafOrder::Offer(BlockId block, const Rank& rank) {
  auto& leaves = leaves_[rank.queue];
  leaves.insert(leaves.end(), {rank.weight, rank.stamp, block});
  ++versions_[rank.queue];
}

// Most blocks are removed at one end.
std::pmr::set<LeafOrder::Leaf>::iterator LeafOrder::Find(BlockId block, const Rank& rank) {
  auto& leaves = leaves_[rank.queue];
  if (leaves.begin()->block == block) return leaves.begin();
  if (leaves.rbegin()->block == block) return std::prev(leaves.end());
  return leaves.find({rank.weight, rank.stamp, block});
}

void LeafOrder::Withdraw(BlockId block, const Rank& rank) {
  leaves_[rank.queue].erase(Find(block, rank));
  ++versions_[rank.queue];
}

void LeafOrder::Add(BlockId block, BlockId parent, const Rank& rank) {
  QUIRE_CHECK(!block.is_none());
  QUIRE_CHECK_MSG(!contains(block), "the block is already evictable");
  QUIRE_CHECK(rank.queue < leaves_.size());
  if (!parent.is_none()) {
    Entry& above = entries_.At(parent);
    if (above.children++ == 0 && above.present) Withdraw(parent, above.rank());
  }
  Entry& entry = entries_.At(block);
  entry.set_rank(rank);
  entry.parent = parent;
  entry.present = true;
  if (entry.children == 0) Offer(block, rank);
  ++block_count_;
}

BlockId LeafOrder::Remove(BlockId block) {
  QUIRE_CHECK_MSG(contains(block), "the block is not evictable");
  Entry& entry = entries_[block];
  const bool was_leaf = entry.children == 0;
  entry.present = false;
  --block_count_;
  if (entry.parent.is_none()) {
    if (was_leaf) Withdraw(block, entry.rank());
    return entry.parent;
  }
  Entry& above = entries_[entry.parent];
  // Eviction of a path comes there next.
  if (!above.parent.is_none()) __builtin_prefetch(&entries_[above.parent]);
  const bool parent_is_leaf = --above.children == 0 && above.present;
  const Rank behind = {entry.queue, entry.weight, entry.stamp + 1};
  if (was_leaf && parent_is_leaf && above.rank() == behind) {
    const auto leaf = Find(block, entry.rank());
    leaf->stamp = above.stamp;
    leaf->block = entry.parent;
    ++versions_[entry.queue];
    return entry.parent;
  }
  if (was_leaf) Withdraw(block, entry.rank());
  if (parent_is_leaf) Offer(entry.parent, above.rank());
  return entry.parent;
}

std::optional<Rank> LeafOrder::FormerRank(BlockId block) const {
  if (!entries_.contains(block) || entries_[block].stamp == 0) return std::nullopt;
  return entries_[block].rank();
}

void LeafOrder::Forget(BlockId block) {
  QUIRE_DCHECK(!contains(block));
  entries_[block].set_rank({});
}

void LeafOrder::Move(BlockId block, Rank rank) {
  QUIRE_CHECK_MSG(contains(block), "the block is not evictable");
  Entry& entry = entries_[block];
  if (entry.children == 0) {
    Withdraw(block, entry.rank());
    Offer(block, rank);
  }
  entry.set_rank(rank);
}

bool LeafOrder::contains(BlockId block) const {
  return entries_.contains(block) && entries_[block].present;
}

Rank LeafOrder::rank(BlockId block) const {
  QUIRE_CHECK_MSG(contains(block), "the block is not evictable");
  return entries_[block].rank();
}

std::optional<BlockId> LeafOrder::First() const {
  for (const auto& leaves : leaves_) {
    if (!leaves.empty()) return leaves.begin()->block;
  }
  return std::nullopt;
}

}  // namespace quire::evict

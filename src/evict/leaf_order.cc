#include "evict/leaf_order.h"

#include "base/check.h"

namespace quire::evict {

LeafOrder::Entry& LeafOrder::At(BlockId block) {
  QUIRE_CHECK(!block.is_none());
  if (block.number() >= entries_.size()) entries_.resize(block.number() + size_t{1});
  return entries_[block.number()];
}

void LeafOrder::Add(BlockId block, BlockId parent, Rank rank) {
  if (!parent.is_none()) {
    Entry& above = At(parent);
    if (above.children++ == 0 && above.present) leaves_.erase({above.rank, parent});
  }
  Entry& entry = At(block);
  QUIRE_CHECK_MSG(!entry.present, "the block is already evictable");
  entry.parent = parent;
  entry.rank = rank;
  entry.present = true;
  if (entry.children == 0) leaves_.insert({rank, block});
  ++block_count_;
}

void LeafOrder::Remove(BlockId block) {
  QUIRE_CHECK_MSG(contains(block), "the block is not evictable");
  Entry& entry = entries_[block.number()];
  if (entry.children == 0) leaves_.erase({entry.rank, block});
  entry.present = false;
  --block_count_;
  if (entry.parent.is_none()) return;
  Entry& above = entries_[entry.parent.number()];
  if (--above.children == 0 && above.present) leaves_.insert({above.rank, entry.parent});
}

void LeafOrder::Move(BlockId block, Rank rank) {
  QUIRE_CHECK_MSG(contains(block), "the block is not evictable");
  Entry& entry = entries_[block.number()];
  if (entry.children == 0) {
    leaves_.erase({entry.rank, block});
    leaves_.insert({rank, block});
  }
  entry.rank = rank;
}

bool LeafOrder::contains(BlockId block) const {
  return block.number() < entries_.size() && entries_[block.number()].present;
}

const Rank& LeafOrder::rank(BlockId block) const {
  QUIRE_CHECK_MSG(contains(block), "the block is not evictable");
  return entries_[block.number()].rank;
}

std::optional<BlockId> LeafOrder::FirstFrom(uint64_t queue) const {
  const auto leaf = leaves_.lower_bound({{.queue = queue, .stamp = 0}, BlockId(0)});
  if (leaf == leaves_.end()) return std::nullopt;
  return leaf->block;
}

std::optional<BlockId> LeafOrder::FirstOf(uint64_t queue) const {
  const auto block = FirstFrom(queue);
  if (!block || rank(*block).queue != queue) return std::nullopt;
  return block;
}

}  // namespace quire::evict

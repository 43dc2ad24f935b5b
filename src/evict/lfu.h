// Least frequently used first.
#ifndef QUIRE_EVICT_LFU_H_
#define QUIRE_EVICT_LFU_H_

#include "evict/keyed_blocks.h"
#include "evict/leaf_order.h"
#include "evict/policy.h"

namespace quire::evict {

/// Uses are counted while a block is in the cache; of equal counts the least recent goes first.
///
/// Cost: O(log leaves) per call; 120 bytes per block
class LfuPolicy final : public Policy {
 public:
  LfuPolicy() : order_(1) {}

  std::string_view name() const override { return "lfu"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new LfuPolicy(order_, uses_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<uint64_t>::kBytesEach;
  }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override {
    const uint64_t uses = ++uses_.At(block, facts.key).value;
    order_.Add(block, facts.parent, {.queue = 0, .weight = uses, .stamp = ++stamp_});
  }
  void Remove(BlockId block) override { order_.Remove(block); }
  void Evict(BlockId block) override {
    order_.Remove(block);
    uses_.Forget(block);
  }
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

 private:
  LfuPolicy(const LeafOrder& order, const KeyedBlocks<uint64_t>& uses)
      : order_(1, order), uses_(uses.table()) {}

  LeafOrder order_;  // weight: uses
  KeyedBlocks<uint64_t> uses_;
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LFU_H_

// Least frequently used first.
#ifndef QUIRE_EVICT_LFU_H_
#define QUIRE_EVICT_LFU_H_

#include "evict/keyed_blocks.h"
#include "evict/leaf_order.h"
#include "evict/policy.h"

namespace quire::evict {

/// Uses are counted while a block is in the cache; of equal counts the least recent goes first.
///
/// Cost: O(log leaves) per call; about 100 bytes per block
class LfuPolicy final : public Policy {
 public:
  std::string_view name() const override { return "lfu"; }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override { order_.Remove(block); }
  void Evict(BlockId block) override;
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

 private:
  LeafOrder order_{1};  // weight: uses
  KeyedBlocks<uint64_t> uses_;
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LFU_H_

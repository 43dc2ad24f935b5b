// Least recently used first.
#ifndef QUIRE_EVICT_LRU_H_
#define QUIRE_EVICT_LRU_H_

#include "evict/policy.h"
#include "evict/rings.h"

namespace quire::evict {

/// Cost: O(1) per call; 8 bytes per block
class LruPolicy final : public Policy {
 public:
  LruPolicy() : order_(1) {}

  std::string_view name() const override { return "lru"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new LruPolicy(order_));
  }
  uint64_t bytes_per_block() const override { return Rings::kBytesEach; }
  using Policy::Add;
  void Add(BlockId block) override;
  void Remove(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return block_count_; }

 private:
  explicit LruPolicy(const Rings& siblings) : order_(1, siblings) {}

  Rings order_;
  uint64_t block_count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LRU_H_

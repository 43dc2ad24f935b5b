// Least recently used first.
#ifndef QUIRE_EVICT_LRU_H_
#define QUIRE_EVICT_LRU_H_

#include "evict/policy.h"
#include "evict/rings.h"

namespace quire::evict {

/// Cost: O(1) per call; 8 bytes per block id
class LruPolicy final : public Policy {
 public:
  std::string_view name() const override { return "lru"; }
  using Policy::Add;
  void Add(BlockId block) override;
  void Remove(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return block_count_; }

 private:
  Rings order_{1};
  uint64_t block_count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LRU_H_

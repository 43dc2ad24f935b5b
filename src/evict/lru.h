// Least recently used first.
#ifndef QUIRE_EVICT_LRU_H_
#define QUIRE_EVICT_LRU_H_

#include <vector>

#include "evict/policy.h"

namespace quire::evict {

/// One ring through a table indexed by block id (small, dense numbers).
///
/// Cost: O(1) per call; 8 bytes per block id
class LruPolicy final : public Policy {
 public:
  LruPolicy();

  std::string_view name() const override { return "lru"; }
  using Policy::Add;
  void Add(BlockId block) override;
  void Remove(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return block_count_; }

 private:
  // Block b is link b + 1. Link 0 starts and ends the ring: its next is the oldest block, its
  // previous the most recent. A link that points at itself is in no ring.
  struct Link {
    uint32_t previous;
    uint32_t next;
  };

  std::vector<Link> links_;
  uint64_t block_count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LRU_H_

// Three queues, first in, first out: what is used once leaves soon.
#ifndef QUIRE_EVICT_S3FIFO_H_
#define QUIRE_EVICT_S3FIFO_H_

#include <array>

#include "evict/ghost_keys.h"
#include "evict/keyed_blocks.h"
#include "evict/leaf_order.h"
#include "evict/policy.h"

namespace quire::evict {

/// New blocks wait in a small queue, a tenth of the cache; those used again there move to the main
/// queue, the others go and are remembered, and come back into the main queue. Whatever stands
/// first in the main queue and was used since gets another round. Uses move nothing.
///
/// Cost: O(log leaves) per call, amortised; 128 bytes per block, 34 for each that is remembered: at
///       most as many as are there
/// Source: Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023; with leaves
///         only as victims
class S3FifoPolicy final : public Policy {
 public:
  S3FifoPolicy() : order_(2) {}

  std::string_view name() const override { return "s3fifo"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new S3FifoPolicy(order_, entries_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<Entry>::kBytesEach;
  }
  bool has_history() const override { return true; }
  void SetHistory(uint64_t bytes) override;
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override;
  void Evict(BlockId block) override;
  void Forget(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return order_.size(); }

 private:
  enum Queue : uint8_t { kSmall, kMain };
  struct Entry {
    uint64_t stamp = 0;
    Queue queue = kSmall;
    uint8_t uses = 0;  // since it came or got another round; counts to kUsesMax

    Rank rank() const { return {.queue = queue, .weight = 0, .stamp = stamp}; }
  };

  S3FifoPolicy(const LeafOrder& order, const KeyedBlocks<Entry>& entries)
      : order_(2, order), entries_(entries.table()) {}

  Queue Turn() const;
  void Settle();

  LeafOrder order_;                   // by queue
  std::array<uint64_t, 2> blocks_{};  // evictable, by queue
  KeyedBlocks<Entry> entries_;
  GhostKeys ghosts_;
  uint64_t ghosts_max_ = UINT64_MAX;
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_S3FIFO_H_

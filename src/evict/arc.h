// Adaptive replacement: recency and frequency, balanced by what was evicted too early.
#ifndef QUIRE_EVICT_ARC_H_
#define QUIRE_EVICT_ARC_H_

#include <array>

#include "evict/ghost_keys.h"
#include "evict/keyed_blocks.h"
#include "evict/leaf_order.h"
#include "evict/policy.h"

namespace quire::evict {

/// Two LRU lists: blocks used once, and more often. A block that comes back soon after it was
/// evicted from one of them makes that list larger. Needs BlockFacts::key to know it again.
///
/// Cost: O(log leaves) per call; 112 bytes per block, and 34 for each one remembered, at most
///       as many of each list as are there
/// Source: Megiddo and Modha, ARC, FAST 2003; with leaves only as victims
class ArcPolicy final : public Policy {
 public:
  ArcPolicy() : order_(2) {}

  std::string_view name() const override { return "arc"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new ArcPolicy(order_, known_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<uint8_t>::kBytesEach;
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
  enum List : uint32_t { kOnce, kOften };

  ArcPolicy(const LeafOrder& order, const KeyedBlocks<uint8_t>& known)
      : order_(2, order), known_(known.table()) {}

  List ListOf(bool is_new, uint64_t key);

  LeafOrder order_;                   // by list
  std::array<uint64_t, 2> blocks_{};  // evictable, by list
  std::array<GhostKeys, 2> ghosts_;   // evicted, by list
  uint64_t ghosts_max_ = UINT64_MAX;  // in each of them
  KeyedBlocks<uint8_t> known_;        // in the cache; what is remembered is only that
  double once_target_ = 0;            // blocks that the list kOnce deserves
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_ARC_H_

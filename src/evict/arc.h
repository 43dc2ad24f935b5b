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
/// Cost: O(log leaves) per call; about 160 bytes per block
/// Source: Megiddo and Modha, ARC, FAST 2003; with leaves only as victims
class ArcPolicy final : public Policy {
 public:
  std::string_view name() const override { return "arc"; }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override;
  void Evict(BlockId block) override;
  void Forget(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return order_.size(); }

 private:
  enum List : uint32_t { kOnce, kOften };

  List ListOf(bool is_new, uint64_t key);

  LeafOrder order_{2};                // by list
  std::array<uint64_t, 2> blocks_{};  // evictable, by list
  std::array<GhostKeys, 2> ghosts_;   // evicted, by list
  KeyedBlocks<uint8_t> known_;        // in the cache; what is remembered is only that
  double once_target_ = 0;            // blocks that the list kOnce deserves
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_ARC_H_

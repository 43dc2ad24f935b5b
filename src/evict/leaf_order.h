// Evictable blocks in an order of the policy's choice, of which only leaves are offered.
#ifndef QUIRE_EVICT_LEAF_ORDER_H_
#define QUIRE_EVICT_LEAF_ORDER_H_

#include <compare>
#include <optional>
#include <set>
#include <vector>

#include "quire/ids.h"

namespace quire::evict {

/// Where a block stands: lower goes first. `queue` groups blocks, `stamp` orders a group; pairs
/// must be unique, or the lower block id decides.
struct Rank {
  uint64_t queue = 0;
  uint64_t stamp = 0;
  auto operator<=>(const Rank&) const = default;
};

/// A block with an evictable child is no leaf: it waits, at its rank, until its children are gone.
///
/// Cost: O(log leaves) where a leaf comes or goes, O(1) for other blocks; 32 bytes per block id and
///       64 per leaf
class LeafOrder {
 public:
  void Add(BlockId block, BlockId parent, Rank rank);
  void Remove(BlockId block);
  /// Moves a block that is here.
  void Move(BlockId block, Rank rank);

  bool contains(BlockId block) const;
  const Rank& rank(BlockId block) const;
  uint64_t size() const { return block_count_; }

  /// The leaf that stands first.
  std::optional<BlockId> First() const { return FirstFrom(0); }
  /// The same among queues from this one on.
  std::optional<BlockId> FirstFrom(uint64_t queue) const;
  /// The same within one queue.
  std::optional<BlockId> FirstOf(uint64_t queue) const;

 private:
  struct Entry {
    BlockId parent;
    uint32_t children = 0;  // that are evictable
    bool present = false;
    Rank rank;
  };
  struct Leaf {
    Rank rank;
    BlockId block;
    auto operator<=>(const Leaf&) const = default;
  };

  Entry& At(BlockId block);

  std::vector<Entry> entries_;  // by block id
  std::set<Leaf> leaves_;
  uint64_t block_count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LEAF_ORDER_H_

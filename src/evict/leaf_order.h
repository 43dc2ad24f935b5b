// Evictable blocks in an order of the policy's choice, of which only leaves are offered.
#ifndef QUIRE_EVICT_LEAF_ORDER_H_
#define QUIRE_EVICT_LEAF_ORDER_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <vector>

#include "evict/per_block.h"
#include "quire/identity.h"

namespace quire::evict {

/// Where a block stands: a queue, and its place there. Lower goes first. No two blocks of a queue
/// that weigh the same have the same stamp, which is at least 1.
struct Rank {
  uint32_t queue = 0;
  uint64_t weight = 0;
  uint64_t stamp = 0;
  auto operator<=>(const Rank&) const = default;
};

/// A block with an evictable child is no leaf: it waits, at its rank, until its children are gone.
///
/// Cost: O(log leaves) where a leaf comes or goes, O(1) for other blocks and where the first or
///       last leaf of a queue makes room for a parent that stands right behind it; kBytesEach per
///       block id, once for all that share the table: 32, and 64 more while it is a leaf
class LeafOrder {
 public:
  struct Leaf {
    uint64_t weight;
    mutable uint64_t stamp;  // changes only to one that leaves the leaf between its neighbours
    mutable BlockId block;
    auto operator<=>(const Leaf&) const = default;
  };

  static constexpr uint64_t kBytesEach = 96;

  explicit LeafOrder(uint32_t queues);
  /// With the table of another order: a block is in one of them at a time, with its parent.
  LeafOrder(uint32_t queues, const LeafOrder& sibling);

  void Add(BlockId block, BlockId parent, const Rank& rank);
  /// Returns the block's parent.
  BlockId Remove(BlockId block);
  /// Where a block stood that is here no more, unless it was forgotten.
  std::optional<Rank> FormerRank(BlockId block) const;
  /// A block that is here no more will not come back: the id may stand for another one.
  void Forget(BlockId block);
  /// Gives a block that is here another rank.
  void Move(BlockId block, Rank rank);

  bool contains(BlockId block) const;
  Rank rank(BlockId block) const;
  uint64_t size() const { return block_count_; }
  /// Moves whenever a queue has got other leaves.
  uint64_t version(uint32_t queue) const { return versions_[queue]; }

  /// The leaf that stands first, in the lowest queue that has one.
  std::optional<BlockId> First() const;
  /// The leaves that stand first and last in a queue, or null. Valid until the order changes.
  const Leaf* FirstOf(uint32_t queue) const {
    return leaves_[queue].empty() ? nullptr : &*leaves_[queue].begin();
  }
  const Leaf* LastOf(uint32_t queue) const {
    return leaves_[queue].empty() ? nullptr : &*leaves_[queue].rbegin();
  }

 private:
  // 32 bytes, so that none lies in two lines of the processor's cache.
  struct Entry {
    uint64_t weight = 0;
    uint64_t stamp = 0;
    BlockId parent;
    uint32_t children = 0;  // that are evictable
    uint32_t queue = 0;
    bool present = false;

    Rank rank() const { return {.queue = queue, .weight = weight, .stamp = stamp}; }
    void set_rank(const Rank& rank) {
      queue = rank.queue;
      weight = rank.weight;
      stamp = rank.stamp;
    }
  };
  static_assert(sizeof(Entry) == 32);
  // What orders share that know blocks by the same ids.
  struct Table {
    Table();

    PerBlock<Entry> entries;
    // Leaves come and go with every eviction; the pool spares them the heap.
    std::pmr::unsynchronized_pool_resource memory;
  };

  LeafOrder(uint32_t queues, std::shared_ptr<Table> table);
  void Offer(BlockId block, const Rank& rank);
  std::pmr::set<Leaf>::iterator Find(BlockId block, const Rank& rank);
  void Withdraw(BlockId block, const Rank& rank);

  const std::shared_ptr<Table> table_;
  PerBlock<Entry>& entries_;                 // by block id
  std::vector<std::pmr::set<Leaf>> leaves_;  // by queue
  std::vector<uint64_t> versions_;           // by queue
  uint64_t block_count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_LEAF_ORDER_H_

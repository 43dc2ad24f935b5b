// The number of holders of each published block and, through it, of its ancestors.
#ifndef QUIRE_CACHE_STATE_LEASE_COUNTS_H_
#define QUIRE_CACHE_STATE_LEASE_COUNTS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/state/touched_records.h"
#include "index/radix_tree.h"
#include "quire/identity.h"

namespace quire::cache {

/// Holders of each block of a tree besides the index. A leased block leases its parent. A holder of
/// a block usually holds its whole path, but a view taken before its blocks were published may hold
/// other copies of the parents, and a window releases them; counting here keeps the policies'
/// promise in every case: an evictable block has no leased descendant.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK)
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: the tree and the count must outlive it
class LeaseCounts {
 public:
  LeaseCounts(const index::RadixTree& tree, TouchedRecords& touched)
      : tree_(tree), touched_(touched) {}

  /// Takes memory for blocks with lower ids than this.
  void Reserve(uint32_t end) {
    if (end > counts_.size()) counts_.resize(std::max<size_t>(end, 2 * counts_.size()));
  }
  /// A new block, which has holders already; the caller adds the lease on its parent.
  void Begin(BlockId block, uint32_t holders) { counts_[block.number()] = holders; }

  uint32_t of(BlockId block) const { return counts_[block.number()]; }
  /// Adds holders. changed(block) is called for each block that got its first, the block itself
  /// first.
  template <typename Changed>
  void Add(BlockId block, const Changed& changed, uint32_t holders = 1) {
    while (!block.is_none()) {
      touched_.Count(1);
      uint32_t& count = counts_[block.number()];
      if (std::exchange(count, count + std::exchange(holders, 1)) > 0) return;
      changed(block);
      block = tree_.parent(block);
    }
  }
  /// Drops one holder. changed(block) is called for each block that lost its last, and may remove
  /// it. A long walk stops after a while: TakeDeferred returns the blocks that must still lose a
  /// lease; until then they count as leased.
  template <typename Changed>
  void Drop(BlockId block, const Changed& changed) {
    while (!block.is_none()) {
      if (!touched_.MayGoOn(kRecordsPerHold - kBlocksPerHold)) return deferred_.push_back(block);
      touched_.Count(1);
      QUIRE_CHECK(of(block) > 0);
      if (--counts_[block.number()] > 0) return;
      const BlockId parent = tree_.parent(block);
      changed(block);
      block = parent;
    }
  }
  bool has_deferred() const { return !deferred_.empty(); }
  BlockId TakeDeferred() {
    const BlockId block = deferred_.back();
    deferred_.pop_back();
    return block;
  }
  /// The number of leased blocks on the path to this one, itself included; they are the first ones.
  ///
  /// Cost: O(log depth) records
  uint32_t LeasedBlocks(BlockId block) const;

 private:
  const index::RadixTree& tree_;
  TouchedRecords& touched_;
  std::vector<uint32_t> counts_;   // by BlockId
  std::vector<BlockId> deferred_;  // each must still lose a lease
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_LEASE_COUNTS_H_

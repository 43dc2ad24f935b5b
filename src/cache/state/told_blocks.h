// What the follower of a cache was told of its blocks, and what it must be told next.
#ifndef QUIRE_CACHE_STATE_TOLD_BLOCKS_H_
#define QUIRE_CACHE_STATE_TOLD_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "quire/identity.h"

namespace quire::cache {

/// For each block whether the follower knows that it is stored; a queue of the blocks that it does
/// not know all about, linked through the entries; and the keys of blocks that it knows and that
/// are gone. A block that comes and goes before it is told leaves nothing, and a key is listed as
/// gone only if it was told, so all of this is bounded by the number of blocks.
///
/// The queue has the order in which blocks were added, so a block is told after its parent.
///
/// Errors:  calls against the contract stop (QUIRE_CHECK)
/// Threads: not synchronised; the caller holds its lock
class ToldBlocks {
 public:
  /// `on`: false: all calls do nothing.
  explicit ToldBlocks(bool on) : on_(on) {}

  /// Takes memory for blocks with lower ids than this. std::bad_alloc: nothing changes.
  void Reserve(uint32_t end);

  /// The block is found from now on.
  void Stored(BlockId block);
  /// The store below has a block. Of one that is not found it says nothing.
  void Durable(BlockId block);
  /// The block with this key is not found any more.
  void Gone(BlockId block, const Digest& key);

  bool is_told(BlockId block) const {
    return block.number() < entries_.size() && entries_[block.number()].told;
  }
  bool has_news() const { return !gone_.empty() || !first_.is_none(); }

  /// A block that was told and is gone.
  struct GoneBlock {
    Digest key{};
    bool durable = false;  // this was not told yet
  };
  bool has_gone() const { return !gone_.empty(); }
  GoneBlock TakeGone();

  /// What the first block of the queue must be told of.
  struct News {
    BlockId block{};
    bool stored = false;
    bool durable = false;
  };
  bool has_queued() const { return !first_.is_none(); }
  /// All that is gone must be taken first.
  News TakeQueued();

  /// Stops if anything is wrong. For tests.
  void CheckInvariants() const;

 private:
  struct Entry {
    BlockId before{};  // in the queue
    BlockId after{};
    bool found = false;
    bool told = false;     // that it is found
    bool durable = false;  // and that must be told
    bool queued = false;
  };

 public:
  /// Memory of one block, with what vectors keep for growing.
  static constexpr uint64_t kBytesEach = 2 * (sizeof(Entry) + sizeof(GoneBlock));

 private:
  void Queue(BlockId block);
  void Unqueue(BlockId block);

  const bool on_;
  std::vector<Entry> entries_;  // by BlockId
  BlockId first_{};
  BlockId last_{};
  std::vector<GoneBlock> gone_;  // capacity for all entries
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_TOLD_BLOCKS_H_

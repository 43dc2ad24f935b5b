// Which forms of the published blocks the store has, and which blocks are to be written next.
#ifndef QUIRE_CACHE_STATE_WRITE_BEHIND_H_
#define QUIRE_CACHE_STATE_WRITE_BEHIND_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "quire/identity.h"

namespace quire::cache {

/// The state of one form of a block in the store.
enum class Below : uint8_t {
  kNothing = 0,
  kWriting = 1,  // it was given to the store, and is not durable yet
  kDurable = 2,
};

/// For each block the state of its sealed form and of its open forms (twins) in the store, and a
/// queue of blocks to be written, linked through the entries, so that it takes no memory. A block
/// that leaves the cache leaves the queue.
///
/// Errors:  calls against the contract stop (QUIRE_CHECK)
/// Threads: not synchronised; the caller holds its lock
class WriteBehind {
 public:
  /// Takes memory for blocks with lower ids than this.
  void Reserve(uint32_t end) {
    if (end > entries_.size()) entries_.resize(std::max<size_t>(end, 2 * entries_.size()));
  }
  /// The block leaves the cache.
  void Remove(BlockId block);

  Below below(BlockId block, bool twins) const {
    const Entry& entry = entries_[block.number()];
    return twins ? entry.twins : entry.sealed;
  }
  void SetBelow(BlockId block, bool twins, Below below);
  /// Sealed forms that the store has too.
  uint64_t stored() const { return stored_; }

  /// Puts a block at the end of the queue, or at its start. A block in the queue keeps its place.
  void Queue(BlockId block, bool first = false);
  bool IsQueued(BlockId block) const { return entries_[block.number()].queued; }
  void Unqueue(BlockId block);
  /// None: the queue is empty.
  BlockId first() const { return first_; }
  uint64_t queued() const { return queued_; }

  /// Stops if anything is wrong. For tests.
  void CheckInvariants() const;

 private:
  struct Entry {
    BlockId before{};  // in the queue
    BlockId after{};
    Below sealed = Below::kNothing;
    Below twins = Below::kNothing;
    bool queued = false;
  };

  std::vector<Entry> entries_;  // by BlockId
  BlockId first_{};
  BlockId last_{};
  uint64_t queued_ = 0;
  uint64_t stored_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_WRITE_BEHIND_H_

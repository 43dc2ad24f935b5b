// Publishing whole blocks, and checking them again later: bytes are hashed without the lock.
#ifndef QUIRE_CACHE_PUBLISHING_H_
#define QUIRE_CACHE_PUBLISHING_H_

#include <span>
#include <vector>

#include "cache/locked_state.h"
#include "cache/publish.h"

namespace quire::cache {

/// Threads: any
class Publishing {
 public:
  explicit Publishing(LockedState& cache) : cache_(cache) {}

  /// Makes whole blocks findable, each the child of the one before; the first says its parent, the
  /// others' are filled in. Where another sequence published the same tokens first, the answer is
  /// that block: the bits are equal. Nothing is published in the place of a quarantined block or
  /// after one: the answers end with the first block that was not published, as they do where
  /// memory runs out.
  ///
  /// Cost: the lock twice, for as long as `blocks` take; hashing is done between
  void Publish(const PublishLocation& location, std::span<NewBlock> blocks,
               std::vector<Published>& answers);
  /// Adds the open forms of blocks that the caller published, or that others did, so that a prompt
  /// may go on after them. It is not done where their account has no room for them.
  ///
  /// Shape: blocks a path's last ones; slots [group][blocks], held by the caller
  void KeepTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                 const PerGroup<std::vector<SlotId>>& slots);
  /// Compares a slot that the caller holds with the checksum of the block published in it, if any,
  /// and quarantines that if they differ.
  bool Intact(SlotId slot);
  /// As Cache.
  VerifyReport Verify();

 private:
  void PublishSome(const PublishLocation& location, std::span<NewBlock> blocks,
                   std::vector<Published>& answers);
  void KeepSomeTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                     const PerGroup<std::vector<SlotId>>& slots);

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_PUBLISHING_H_

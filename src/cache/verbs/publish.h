// Publishing whole blocks, and verifying them later: verbs under the lock, and the class that runs
// them. Bytes are hashed between holds.
#ifndef QUIRE_CACHE_VERBS_PUBLISH_H_
#define QUIRE_CACHE_VERBS_PUBLISH_H_

#include <optional>
#include <span>
#include <vector>

#include "cache/state/locked_state.h"

namespace quire::cache {

/// A block of a sequence at the moment it is published.
struct NewBlock {
  BlockId parent{};                 // none for the first block
  std::span<const TokenId> tokens;  // [block_tokens]
  PerClass<SlotId> slots{};  // of each group, with one reference of the sequence; none: was not
                             // loaded
  const PerClass<uint32_t>* crcs = nullptr;  // of their bytes; null: not known yet
  FormError error{};                         // of the sealed form
};

/// The result for one block.
struct Published {
  BlockId block{};           // none: it cannot be published now, and stays private
  PerClass<SlotId> slots{};  // the block's slots, held for the caller; where one is another's the
                             // block was deduplicated, and the caller releases its own
  bool final = false;        // with no block: never try again
};

/// The result for a block that needs no hashing. Empty: it is new, or slots of it are missing.
std::optional<Published> JoinWhole(State& state, const PublishLocation& location,
                                   const NewBlock& block);
/// Publishes a block; `record` has its slots, key and checksums.
Published PublishOne(State& state, const PublishLocation& location, const NewBlock& block,
                     const BlockRecord& record);

/// An open form that may be kept with its published block.
struct Twin {
  BlockId block{};
  SlotId slot{};
  uint32_t crc = 0;
};
/// The open forms of a path's last blocks that have no twin yet.
///
/// Shape: slots [group][blocks], held by the caller
std::vector<Twin> MissingTwins(const State& state, const PublishLocation& location,
                               std::span<const BlockId> blocks,
                               const PerGroup<std::vector<SlotId>>& slots);
/// Adds those that are still missing, unless their account has no room. `hashed` have checksums.
void AddTwins(State& state, const PublishLocation& location, std::span<const BlockId> blocks,
              const PerGroup<std::vector<SlotId>>& slots, std::span<const Twin> hashed);

/// Threads: any
class Publishing {
 public:
  explicit Publishing(LockedState& cache) : cache_(cache) {}

  /// Makes whole blocks findable, each the child of the one before; the first has its parent, the
  /// others' are filled in. Where another sequence published the same tokens first, the answer is
  /// that block: the bits are equal. Nothing is published in the place of a quarantined block or
  /// after one: the answers end with the first block that was not published, as they do where
  /// memory runs out, or the device has failed.
  ///
  /// Errors: kIo names the device that failed before the blocks had checksums; the answers stand
  /// Cost: the lock twice, for as long as `blocks` take; hashing is done between
  Result<void> Publish(const PublishLocation& location, std::span<NewBlock> blocks,
                       std::vector<Published>& answers);
  /// Adds open forms as twins of blocks that the caller or others published, so that a prompt may
  /// continue after them. Does nothing where their account has no room.
  ///
  /// Shape: blocks a path's last ones; slots [group][blocks], held by the caller
  void KeepTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                 const PerGroup<std::vector<SlotId>>& slots);
  /// Compares a slot that the caller holds with the checksum of the block published in it, if any,
  /// and quarantines the block if they differ. False also where the device failed and the result is
  /// unknown.
  bool Intact(SlotId slot);
  /// As Cache.
  VerifyReport Verify();

 private:
  Result<void> PublishSome(const PublishLocation& location, std::span<NewBlock> blocks,
                           std::vector<Published>& answers);
  void KeepSomeTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                     const PerGroup<std::vector<SlotId>>& slots);

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_PUBLISH_H_

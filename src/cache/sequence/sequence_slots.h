// The slots that one sequence holds: those of its blocks, and spare ones for blocks to come.
#ifndef QUIRE_CACHE_SEQUENCE_SEQUENCE_SLOTS_H_
#define QUIRE_CACHE_SEQUENCE_SEQUENCE_SLOTS_H_

#include <cstdint>
#include <vector>

#include "cache/sequence/block_list.h"
#include "cache/state/slot_classes.h"
#include "quire/identity.h"

namespace quire::cache {

/// Bytes that a list takes to grow to so many entries, where their slots do not pay for them.
uint64_t BytesToGrow(const SlotClasses& classes, const BlockList& list, uint64_t blocks);

/// The slots of a sequence. Its list of blocks has published ones, then private ones (written, then
/// reserved), each with a slot in every class. Where a window looks back, and in the open classes,
/// there are holes: blocks that have been passed, and those not written yet, for which *spare*
/// slots wait. It decides which slots a sequence needs; its owner takes them and gives them back.
///
/// Threads:  as a vector
/// Lifetime: `classes` must outlive it
class SequenceSlots {
 public:
  /// The most that a sequence appends between two commits.
  struct Steps {
    uint64_t tokens = 1;
    bool in_prompt = false;  // else one token at a time: open forms need no more slots
  };

  /// Of a sequence that begins with `tokens` tokens, the first of which are in `blocks`; it shares
  /// the first `shared` of these.
  SequenceSlots(const SlotClasses& classes, BlockList blocks, uint64_t tokens, uint64_t shared);

  const SlotClasses& classes() const { return classes_; }

  BlockList& list() { return list_; }
  const BlockList& list() const { return list_; }
  uint32_t class_count() const { return classes_.count(); }
  /// Blocks before this one were shared with it from the start.
  uint64_t first_own() const { return first_own_; }
  /// The slot that the sequence holds of a block, or none.
  SlotId at(uint32_t slot_class, uint64_t block) const {
    const bool is_sink = block < classes_.reach(slot_class).sink_blocks();
    if (!is_sink && block < states_[slot_class].passed) return SlotId::None();
    return list_.slot(slot_class, block);
  }
  /// Spare slots of a class.
  const std::vector<SlotId>& spare(uint32_t slot_class) const { return states_[slot_class].spare; }
  /// The slots of blocks [0, blocks), without the holes.
  std::vector<SlotId> Held(uint64_t blocks) const;
  /// Whether the blocks that a query at `position` sees are still here.
  bool Sees(uint64_t position) const;

  /// Slots that are missing for so much room, and for writing one group up to a block.
  PerClass<uint64_t> Lacking(uint64_t blocks, uint32_t write_group, uint64_t write_end,
                             const Steps& steps) const;
  /// Puts `added` into the list: all of them, or (when memory runs out) none.
  void Grow(uint64_t blocks, const PerClass<std::vector<SlotId>>& added);
  /// Gives the blocks of a group up to this one their slots.
  void AssignUpTo(uint32_t write_group, uint64_t write_end);

  /// Takes out the slots that no query from `length` on can see, of sealed forms none from block
  /// `sealed_end` on, and spare slots beyond need. Returns how many slots should replace them.
  PerClass<uint64_t> TakePassed(uint64_t length, uint64_t sealed_end, const Steps& steps,
                                std::vector<SlotId>& passed);
  /// Blocks before this one, sinks aside, have been released.
  uint64_t passed(uint32_t slot_class) const { return states_[slot_class].passed; }
  /// Takes memory so that Cut needs none for `more` spare slots of each class.
  void ReserveSpare(uint64_t more);
  /// Cuts the list at `position` to `blocks` blocks; `room` becomes its spare slots.
  void Cut(uint64_t position, uint64_t blocks, const PerClass<std::vector<SlotId>>& room);
  /// Begins anew with an empty list, and returns all its slots.
  std::vector<SlotId> Clear(BlockList empty);

 private:
  // Of one slot class.
  struct ClassState {
    std::vector<SlotId> spare{};  // for blocks not yet written, where there are holes
    uint64_t passed = 0;          // blocks before this one, sinks aside, were passed by the window
    uint64_t assigned = 0;        // blocks before this one have had a slot
  };

  bool IsWritten(uint32_t slot_class, uint32_t group) const {
    return slot_class == group || slot_class == classes_.OpenClassOf(group);
  }
  uint64_t SpareWanted(uint32_t slot_class, uint64_t blocks, const Steps& steps) const;

  const SlotClasses& classes_;
  BlockList list_;  // with the tokens that were committed, if it publishes
  PerClass<ClassState> states_{};
  uint64_t first_own_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_SEQUENCE_SLOTS_H_

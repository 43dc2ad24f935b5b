// What kinds of slots a cache has, what each costs, and which of them a query needs. Never changes.
#ifndef QUIRE_CACHE_STATE_SLOT_CLASSES_H_
#define QUIRE_CACHE_STATE_SLOT_CLASSES_H_

#include <cstdint>
#include <optional>
#include <span>

#include "cache/sequence/reach.h"
#include "codec/slot_layout.h"
#include "quire/cache.h"
#include "quire/identity.h"

namespace quire::cache {

/// What a budget pays for.
struct Capacity {
  uint64_t hot_bytes = 0;
  uint64_t ledger_bytes = 0;   // less where there are no ids for more slots
  PerClass<uint32_t> slots{};  // of each class
};

/// The slot classes of a cache: the sealed form of each layer group, in order; then, where
/// codecs encode, the open form of each. Slot ids are unique over all classes.
///
/// Threads: immutable once the arenas are placed
class SlotClasses {
 public:
  /// Errors: kUnsupported too many windows, or a layout or codec that this build lacks; kNoSpace
  ///         the budget cannot hold one block
  static Result<SlotClasses> Create(const CacheOptions& options);

  /// As a streamed sequence (SequenceOptions::resident_tokens) needs them.
  SlotClasses WithResident(uint64_t resident_tokens) const;

  /// Of sealed slots.
  const codec::SlotLayout& layout() const { return layout_; }
  /// Of open slots; the same where codecs store values as they are.
  const codec::SlotLayout& open_layout() const { return open_layout_ ? *open_layout_ : layout_; }
  /// Of what a store is given; the sealed slots' but for a precision ladder with a step for it.
  const codec::SlotLayout& store_layout() const { return store_layout_ ? *store_layout_ : layout_; }
  bool reencodes() const { return store_layout_.has_value(); }
  /// Tells the layout where an arena of this class has its pieces, before the first use.
  void PlaceArena(uint32_t slot_class, uint64_t piece_stride_bytes) {
    if (slot_class < group_count()) layout_.PlaceArena(slot_class, piece_stride_bytes);
  }

  uint32_t group_count() const { return layout_.group_count(); }
  uint32_t count() const { return group_count() * (open_layout_ ? 2 : 1); }
  bool is_sealed(uint32_t slot_class) const { return slot_class < group_count(); }
  uint32_t OpenClassOf(uint32_t group) const {
    return open_layout_ ? group_count() + group : group;
  }
  uint32_t GroupOf(uint32_t slot_class) const { return slot_class % group_count(); }
  uint32_t ClassOf(SlotId slot) const { return slot.number() % count(); }
  /// The slot's number in its own class, and back.
  SlotId Local(SlotId slot) const { return SlotId(slot.number() / count()); }
  SlotId Global(uint32_t slot_class, SlotId local) const {
    return SlotId(local.number() * count() + slot_class);
  }

  uint32_t block_tokens() const { return layout_.block_tokens(); }
  /// Whole blocks before its own that a row reads open; 0 where nothing is encoded.
  uint32_t residual_blocks() const { return residual_blocks_; }
  uint32_t residual_tokens() const { return residual_tokens_; }
  /// Whether blocks may be left in the sealed form alone: there is one group then, without windows.
  bool has_ladder() const { return residual_blocks_ == kPrecisionLadder; }
  uint64_t slot_bytes(uint32_t slot_class) const {
    return (is_sealed(slot_class) ? layout_ : *open_layout_).slot_bytes(GroupOf(slot_class));
  }
  uint32_t pieces(uint32_t slot_class) const {
    return (is_sealed(slot_class) ? layout_ : *open_layout_).pieces(GroupOf(slot_class));
  }
  /// How far back each class is needed. [count]
  std::span<const WindowReach> reaches() const { return {reaches_.data(), count()}; }
  const WindowReach& reach(uint32_t slot_class) const { return reaches_[slot_class]; }
  /// Whether blocks are released while their sequence lives.
  bool windowed(SlotId slot) const { return reaches_[ClassOf(slot)].windowed(); }
  /// Whether every layer has a window.
  bool only_windows() const;
  /// Whether a query after `tokens` tokens can look at this class of a block.
  bool IsNeeded(uint32_t slot_class, uint64_t block, uint64_t tokens) const {
    const WindowReach& reach = reaches_[slot_class];
    return block < reach.sink_blocks() || block >= reach.first_needed(tokens);
  }
  /// The first block from which on a query after `tokens` tokens may look at every sealed class.
  uint64_t first_whole(uint64_t tokens) const;
  /// Slots that a sequence of `blocks` blocks has of its own at most, with `shared` others.
  PerClass<uint64_t> OwnSlots(uint64_t shared, uint64_t blocks, uint64_t step_tokens) const;

  /// What a slot costs the budget: its pages, its bookkeeping and, of a sealed one, its block's.
  uint64_t charge_bytes(uint32_t slot_class) const { return charges_[slot_class]; }
  uint64_t charge_bytes(SlotId slot) const { return charges_[ClassOf(slot)]; }
  /// Of all sealed slots of a block.
  uint64_t block_charge_bytes() const;
  /// UINT64_MAX: more than that.
  uint64_t Charge(const PerClass<uint64_t>& counts) const;
  /// The share of a sealed slot's charge for the policy's history.
  uint64_t history_bytes() const { return history_bytes_; }
  /// The share of a sealed slot's charge for blocks that are gone.
  uint64_t memory_bytes() const;

  /// Errors: kNoSpace
  Result<void> CheckHoldsABlock(uint64_t hot_bytes) const;
  Capacity CapacityFor(uint64_t hot_bytes) const;
  /// Blocks without bytes that a budget pays for; later blocks are found through them.
  uint64_t EmptyMax(const Capacity& capacity) const;

 private:
  SlotClasses(codec::SlotLayout layout, std::optional<codec::SlotLayout> open_layout,
              const CacheOptions& options);

  codec::SlotLayout layout_;
  std::optional<codec::SlotLayout> open_layout_;
  std::optional<codec::SlotLayout> store_layout_{};
  uint32_t residual_tokens_ = 0;
  uint32_t residual_blocks_ = 0;
  PerClass<WindowReach> reaches_{};
  PerClass<uint64_t> charges_{};
  uint64_t history_bytes_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_SLOT_CLASSES_H_

// A sequence on the core: its slots in token order, one cursor per layer, the committed length.
#ifndef QUIRE_CACHE_SEQUENCE_IMPL_H_
#define QUIRE_CACHE_SEQUENCE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "cache/core.h"
#include "quire/sequence.h"

namespace quire::cache {

/// Every part has a list of slots: published blocks, then private ones (written, then reserved).
/// Where a window looks back, the list has holes: blocks it has passed, and those not written yet,
/// for which `spare` slots wait. Only the writer changes the lists, under mutex_, so the writer may
/// read them without; other threads take the mutex.
class SequenceImpl final : public Sequence {
 public:
  /// Takes the plan's pins over; `own_slots` are the sequence's room for `blocks` blocks in all.
  SequenceImpl(Core& core, PlanState plan, PerPart<std::vector<SlotId>> own_slots, uint64_t blocks,
               const SequenceOptions& options);
  ~SequenceImpl() override;

  SequenceId id() const override { return id_; }
  uint64_t length() const override { return length_.load(std::memory_order_acquire); }
  uint64_t cursor(uint32_t layer) const override;
  SequenceStats stats() const override;
  Result<void> Reserve(uint64_t tokens) override;
  Result<void> Append(uint32_t layer, const LayerRows& rows) override;
  Result<void> Commit(std::span<const TokenId> tokens) override;
  Result<void> Rollback(uint64_t position) override;
  Result<std::unique_ptr<Sequence>> Fork() override;
  void Reset() override;
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const override;
  Result<BlockListView> View(uint32_t layer, StreamRole role) const override;
  LayerBlocks Blocks(uint32_t layer) const override;

 private:
  struct Part {
    std::vector<SlotId> slots{};               // [blocks_]; one hold each, or none
    std::vector<const std::byte*> pointers{};  // data of each slot, or null
    std::vector<SlotId> spare{};               // for blocks not yet written; windowed parts only
    uint64_t passed = 0;    // blocks before this one, sinks aside, were passed by the window
    uint64_t assigned = 0;  // blocks before this one have had a slot
  };

  uint32_t part_count() const { return core_.layout().part_count(); }
  uint64_t cursor_max() const;
  Result<PerPart<std::vector<SlotId>>> AddSlots(const PerPart<uint64_t>& counts);
  uint64_t SpareWanted(uint32_t part, uint64_t blocks) const;
  /// Room for `tokens` tokens in all; slots for those of `part` up to block `write_end`.
  Result<void> MakeRoom(uint64_t tokens, uint32_t part, uint64_t write_end);
  const std::byte* DataOf(SlotId slot) const;
  void SetSlot(Part& part, uint64_t block, SlotId slot) QUIRE_REQUIRES(mutex_);
  void Grow(uint64_t blocks, const PerPart<std::vector<SlotId>>& added) QUIRE_REQUIRES(mutex_);
  void PublishWholeBlocks(uint64_t length);
  void PassWindows(uint64_t length);
  bool StillNeeded(uint64_t position) const;
  bool IsMine(const Part& part, uint64_t block) const;
  /// Copies of block `block` in the parts that ask for one; what cannot be copied changes nothing.
  Result<PerPart<std::vector<SlotId>>> CopyBlock(uint64_t block, const PerPart<bool>& wanted);
  /// Cuts at `position`, with `copies` (if any) in the place of the block that is cut, and tells
  /// which slots to let go. Else, and nothing done: the parts of that block that others can see,
  /// so that copies are needed.
  PerPart<bool> TryTruncate(uint64_t position, const PerPart<std::vector<SlotId>>& copies,
                            std::vector<SlotId>& dropped);
  void Truncate(uint32_t part, uint64_t kept, std::vector<SlotId>& dropped) QUIRE_REQUIRES(mutex_);
  /// The slots of blocks [0, blocks), block by block, without the holes.
  std::vector<SlotId> Held(uint64_t blocks) const;
  Result<StreamLayout> LayoutOf(uint32_t layer, StreamRole role) const;

  static constexpr uint64_t kNoBlock = UINT64_MAX;

  Core& core_;
  const SequenceId id_;
  const Place place_;
  const uint64_t step_tokens_;
  const bool publish_;
  const bool contiguous_;

  mutable Mutex mutex_{LockRank{10}};
  uint64_t blocks_ = 0;     // room, in blocks
  uint64_t first_own_ = 0;  // blocks before this one were shared with it from the start
  PerPart<Part> parts_{};
  std::vector<BlockId> published_;  // ids of the first published_.size() blocks
  std::vector<TokenId> tokens_;     // committed; empty when nothing (more) is published
  bool gave_up_ = false;            // its path can no longer be found, so it publishes nothing more
  // A private block that began as a copy of damaged bytes. Neither it nor what follows is
  // published.
  uint64_t damaged_block_ = kNoBlock;
  std::vector<std::atomic<uint64_t>> cursors_;  // [layers]
  std::atomic<uint64_t> length_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_IMPL_H_

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

/// slots_ = published blocks, then private ones (written, then reserved). Only the writer changes
/// the list, under mutex_, so the writer may read it without; other threads take the mutex.
class SequenceImpl final : public Sequence {
 public:
  /// Takes the plan's pins over; `own_slots` are the sequence's room after them.
  SequenceImpl(Core& core, PlanState plan, std::vector<SlotId> own_slots, bool publish);
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
  uint64_t cursor_max() const;
  void PublishWholeBlocks(uint64_t length);
  /// Replaces the slot list and the pointers that mirror it.
  void SetSlots(std::vector<SlotId> slots) QUIRE_REQUIRES(mutex_);
  /// Cuts at `position`, with `copy` (if any) in the place of the block that is cut, and tells
  /// which slots to let go. False, and nothing done: others can see that block, so a copy is
  /// needed.
  bool TryTruncate(uint64_t position, SlotId copy, std::vector<SlotId>& dropped);
  Result<StreamLayout> LayoutOf(uint32_t layer, StreamRole role) const;

  static constexpr uint64_t kNoBlock = UINT64_MAX;

  Core& core_;
  const SequenceId id_;
  const Place place_;
  const bool publish_;

  mutable Mutex mutex_{LockRank{10}};
  std::vector<SlotId> slots_;               // one hold each
  std::vector<const std::byte*> pointers_;  // [slots_.size()], data of each slot
  std::vector<BlockId> published_;          // ids of the first published_.size() slots
  std::vector<TokenId> tokens_;             // committed
  // A private block that began as a copy of damaged bytes. Neither it nor what follows is
  // published.
  uint64_t damaged_block_ = kNoBlock;
  std::vector<std::atomic<uint64_t>> cursors_;  // [layers]
  std::atomic<uint64_t> length_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_IMPL_H_

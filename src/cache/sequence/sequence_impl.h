// A sequence of the cache: its slots in token order, one cursor per layer, the committed length.
#ifndef QUIRE_CACHE_SEQUENCE_SEQUENCE_IMPL_H_
#define QUIRE_CACHE_SEQUENCE_SEQUENCE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "cache/below/arrival.h"
#include "cache/below/sequence_stream.h"
#include "cache/sequence/sequence_slots.h"
#include "cache/verbs/holds.h"
#include "cache/verbs/publish.h"
#include "quire/identity.h"
#include "quire/sequence.h"

namespace quire::cache {

class SequenceImpl;

/// All live sequences, so that an error can name those that hold a slot.
///
/// Threads: All live sequences, so that an error can name those that hold a slot.
class Sequences {
 public:
  ~Sequences() { QUIRE_CHECK_MSG(count_ == 0, "a sequence outlives its cache"); }

  uint64_t count() const { return count_; }
  SequenceId NextId() { return SequenceId(next_++); }
  void Add(SequenceId id, const SequenceImpl& sequence) {
    MutexLock lock(mutex_);
    sequences_.emplace(id, &sequence);
    ++count_;
  }
  void Remove(SequenceId id) {
    MutexLock lock(mutex_);
    sequences_.erase(id);
    --count_;
  }
  /// By ascending id. No sequence ends meanwhile.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    MutexLock lock(mutex_);
    for (const auto& [id, sequence] : sequences_) visit(*sequence);
  }

 private:
  mutable Mutex mutex_{LockRank::kSequences};
  std::map<SequenceId, const SequenceImpl*> sequences_ QUIRE_GUARDED_BY(mutex_);
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> next_{1};
};

/// The verbs that a sequence uses, for as long as it lives.
struct SequenceVerbs {
  LockedState& cache;
  Holds& holds;
  Publishing& publishing;
  Sequences& sequences;
};

/// Rows are appended layer by layer to its slots, and published when they are whole in all layers.
/// State that appending and reading threads share is guarded by mutex_.
class SequenceImpl final : public Sequence {
 public:
  /// The state that a sequence begins with.
  struct Start {
    PublishLocation location{};
    uint64_t prompt_tokens = 0;
    uint64_t tokens = 0;             // committed
    bool asked = true;               // whether a request looked up its prompt
    bool is_exact = true;            // no block is read sealed, with a precision ladder
    float approximate_error = 0.0f;  // the largest of those that are
    BlockList blocks;                // of these tokens; their slots are held for the sequence
    MetadataCharge charge{};         // pays for the sequence and for entries of `blocks`
    Lease lease{};                   // holds the blocks until the sequence does; may be empty
    // Of the blocks behind the published ones, which a load publishes; null: all is there.
    std::shared_ptr<const Arrival> arrival{};
    // Of a streamed sequence, whose `blocks` are its own, with what it needs of each class.
    std::unique_ptr<SequenceStream> stream{};
    std::unique_ptr<const SlotClasses> classes{};
  };

  /// `own_slots` are its room for `blocks` blocks in all, of at most `tokens_max` tokens. If memory
  /// runs out, these slots and the lease of `start` are given back.
  SequenceImpl(const SequenceVerbs& verbs, Start start, OwnedSlots own_slots, uint64_t blocks,
               uint64_t tokens_max, const SequenceOptions& options);
  ~SequenceImpl() override;

  /// Bytes of a sequence besides its list of blocks.
  static uint64_t FixedBytes(const SlotClasses& classes);

  SequenceId id() const override { return id_; }
  uint64_t length() const override { return length_.load(std::memory_order_acquire); }
  uint64_t cursor(uint32_t layer) const override;
  SequenceStats stats() const override;
  Result<void> Reserve(uint64_t tokens) override;
  Result<void> Append(uint32_t layer, const LayerRows& rows) override;
  Result<void> Commit(std::span<const TokenId> tokens) override;
  Result<void> Rollback(uint64_t position) override;
  Result<std::unique_ptr<Sequence>> Fork() override;
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept_blocks) override;
  uint64_t dropped_tokens() const override { return dropped_tokens_; }
  Result<void> Retain(const Retention& retention) override;
  void Reset() override;
  bool MayEnd(uint64_t wait_us) override;
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const override;
  Result<PaddedRow> Padded(uint32_t layer, StreamRole role, uint64_t tokens_max) const override;
  Result<BlockListView> View(uint32_t layer, StreamRole role, TokenRange range) const override;
  LayerStreams Streams(uint32_t layer) const override;
  LayerBlocks Blocks(uint32_t layer) const override;
  StreamedContext* streamed() override { return stream_.get(); }
  Result<bool> AwaitLayer(uint32_t layer, uint64_t wait_us) override;
  bool arrives() const override;

  TenantId tenant() const { return location_.tenant; }
  /// The slots among these that it holds.
  std::vector<SlotId> HeldOf(const std::set<SlotId>& slots) const;

  /// Some blocks of one stream of one layer at one moment, pinned: whole blocks in the sealed form,
  /// the last one in the open form; with a precision ladder in the open form where there is one.
  struct Snapshot {
    /// False: some of these tokens are outside the window.
    bool Has(uint64_t begin, uint64_t end) const;
    /// Copies tokens [begin, end), which lie in its blocks, to out [heads][tokens][dim]; missing
    /// blocks are left out. The values are there when the operations so far are done.
    void Read(uint64_t begin, uint64_t end, float* out, int64_t head_stride) const;

    BlockOps* ops = nullptr;
    StreamLayout sealed{};
    StreamLayout open{};
    uint64_t tokens = 0;                    // written in the layer
    uint64_t committed = 0;                 // of the sequence; never more than `tokens`
    uint64_t first_block = 0;               // of `slots`
    std::vector<const std::byte*> slots{};  // null: outside the window
    std::vector<bool> in_open{};            // of each slot, whether it has the open form
    Lease lease{};
  };
  /// The blocks of tokens [begin, end), as far as they are written.
  Result<Snapshot> Take(uint32_t layer, StreamRole role, uint64_t begin = 0,
                        uint64_t end = UINT64_MAX) const;

 private:
  uint64_t cursor_max() const;
  std::shared_ptr<const Arrival> arrival() const;
  /// Errors: kBusy not all layers are there; kNotFound they will not be
  Result<void> CheckArrived(std::string_view verb) const QUIRE_REQUIRES(mutex_);
  Result<Holds::Allocation> AddSlots(const PerClass<uint64_t>& counts, uint64_t metadata_bytes);
  SequenceSlots::Steps steps() const {
    return {.tokens = step_tokens_, .in_prompt = length() < prompt_tokens_};
  }
  /// Room for `tokens` tokens in all; slots for those of `group` up to block `write_end`.
  Result<void> EnsureCapacity(uint64_t tokens, uint32_t group, uint64_t write_end);
  /// Makes the entries from `block` on this sequence's own. Errors: kNoSpace
  Result<void> Own(uint64_t block);
  struct WrittenSlots {
    std::vector<SlotId> open{};
    std::vector<SlotId> sealed{};
  };
  WrittenSlots SlotsToWrite(uint32_t group, uint64_t begin, uint64_t end) const;
  Result<void> PublishWholeBlocks(uint64_t length);
  /// The same of a sequence that streams: to the store alone.
  void WriteWholeBlocks(uint64_t length, uint64_t at_once);
  void WriteRest();
  std::optional<NewBlock> WholeBlock(size_t i) const;
  void TakeOver(std::span<const NewBlock> blocks, std::span<const Published> answers,
                std::vector<SlotId>& own);
  /// Keeps twins so that prompts may continue after the first `blocks` blocks, as far as these are
  /// published.
  void KeepTwins(uint64_t blocks);
  bool IsSealedOnly(uint64_t block) const;
  void PassWindows(uint64_t length);
  bool TakeToRewrite(uint32_t slot_class, uint64_t block) const;
  /// Copies block `block` in the wanted classes; a failed copy changes nothing.
  Result<OwnedSlots> CopyBlock(uint64_t block, const PerClass<bool>& wanted);
  /// Cuts at `position`, with `copies` (if any) in the place of the block that is cut, and returns
  /// the slots to release. Without copies where they are needed it does nothing and returns the
  /// slots of that block that others can see.
  PerClass<bool> TryTruncate(uint64_t position, const OwnedSlots& copies,
                             std::vector<SlotId>& dropped);
  void SortBeyond(uint32_t slot_class, uint64_t kept, std::vector<SlotId>& room,
                  std::vector<SlotId>& dropped) const QUIRE_REQUIRES(mutex_);

  // Blocks that hold tokens of a range, and their priority.
  struct Retained {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint8_t priority = 0;
    uint64_t until_us = 0;
  };
  void Apply(const Retained& retained, uint64_t first_block) const;

  static constexpr uint64_t kNoBlock = UINT64_MAX;

  const SequenceVerbs& verbs_;
  const SequenceId id_;
  const PublishLocation location_;
  const uint64_t prompt_tokens_;
  const uint64_t tokens_max_;
  const uint64_t step_tokens_;
  const bool publish_;
  const bool contiguous_;
  const bool asked_;  // whether a request looked up its prompt
  // What follows approximate blocks is published without twins, so exact lookups do not find it.
  const bool is_exact_;
  const float approximate_error_;
  bool looked_up_ = true;        // the prompt came with a request
  bool gave_up_ = false;         // its path can no longer be found, so it publishes nothing more
  uint64_t dropped_tokens_ = 0;  // set once, before other threads can see the sequence; and by
                                 // Reset

  const std::unique_ptr<const SlotClasses> own_classes_;  // of a streamed sequence; else null
  mutable Mutex mutex_{LockRank::kSequence};
  SequenceSlots slots_;
  std::shared_ptr<const Arrival> arrival_ QUIRE_GUARDED_BY(mutex_);  // until Reset; may be null
  const std::unique_ptr<SequenceStream> stream_;  // null: all blocks are in memory
  MetadataCharge charge_;                         // for the sequence itself
  std::vector<Retained> retained_;                // until Reset
  // A private block that began as a copy of damaged bytes. Neither it nor later blocks are
  // published.
  uint64_t damaged_block_ = kNoBlock;
  std::vector<std::atomic<uint64_t>> cursors_;  // [layers]
  std::atomic<uint64_t> length_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_SEQUENCE_IMPL_H_

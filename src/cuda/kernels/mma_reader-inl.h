// What the kernels of the class mma16 read of a split: which stages of K and V, where their blocks
// are, what each query vector sees of them, and the scales of codes (cuda/kernels/mma_attend.h).
// Stages come one after the other into buffers that the threads of a block share: K first, then V.
#ifndef QUIRE_CUDA_KERNELS_MMA_READER_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_READER_INL_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/visible.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_buffers-inl.h"
#include "cuda/kernels/mma_stage-inl.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

template <class Thread, bool kFolds, Staging kStaging>
class SplitReader {
 public:
  static constexpr uint32_t kTokens = StageTokensOf(kFolds, kStaging);
  static constexpr uint32_t kStages = kSplitTokens / kTokens;
  static constexpr bool kEncoded = kStaging == Staging::kCodes;
  static_assert((kFolds ? 4 : 6) * kStages <= 32);

  QUIRE_KERNEL SplitReader(Thread& self, const MmaArgs& mma)
      : self_(self),
        warp_(self),
        mma_(mma),
        args_(mma.splits),
        shape_(mma.splits.shape),
        layout_(mma.shared),
        buffers_(self, mma) {}

  /// Before the first split.
  QUIRE_KERNEL void Open() { buffers_.Open(); }

  /// The splits that follow are those of this tile.
  QUIRE_KERNEL void FindTile(uint32_t number) {
    tile_ = args_.tiles + number;
    kv_head_ = tile_->head_begin / (shape_.query_heads / shape_.key.heads);
    open_begin_ = FirstOpen(tile_->position_min);
    open_end_ = tile_->position_max + 1;
    sealed_end_ = std::min(open_end_, FirstOpen(tile_->position_max));
  }
  QUIRE_KERNEL const Tile& tile() const { return *tile_; }

  QUIRE_KERNEL bool KeyEncodes() const { return kEncoded && shape_.key.codec > Codec::kBf16; }
  QUIRE_KERNEL bool ValueEncodes() const { return kEncoded && shape_.value.codec > Codec::kBf16; }

  /// Kinds of stages are K sealed, K open, then for every group of channels V sealed, V open.
  QUIRE_KERNEL static uint32_t KeyKind(bool open) { return open ? 1 : 0; }
  QUIRE_KERNEL static uint32_t ValueKind(uint32_t group, bool open) {
    return 2 + group * 2 + (open ? 1 : 0);
  }
  /// A number of a stage; they are entered in this order.
  QUIRE_KERNEL static uint32_t StageOf(uint32_t kind, uint32_t j) { return kind * kStages + j; }

  // Of the split that was started.

  QUIRE_KERNEL bool IsNeeded(uint32_t number) const { return (needed_ >> number & 1u) != 0; }
  QUIRE_KERNEL bool NeedsAny(uint32_t kind) const {
    return (needed_ >> StageOf(kind, 0) & ((1u << kStages) - 1)) != 0;
  }
  QUIRE_KERNEL bool NeedsNothing() const { return needed_ == 0; }
  /// All query vectors see all tokens, and read them sealed.
  QUIRE_KERNEL bool all_sealed() const { return all_sealed_; }

  /// Asks for its first stages. Ends with a Sync.
  QUIRE_KERNEL void StartSplit(uint64_t split) {
    first_token_ = split * kSplitTokens;
    ends_ = InSplit(sealed_end_) | InSplit(open_end_) << 16;
    const uint32_t open_begin = InSplit(open_begin_);
    const uint64_t window = shape_.window_tokens;
    uint32_t sinks_end = 0;
    uint32_t window_begin = 0;  // of the first row
    if (window != 0 && tile_->position_min >= window) {
      sinks_end = InSplit(shape_.sink_tokens);
      window_begin = InSplit(tile_->position_min + 1 - window);
    }
    uint32_t forms = 0;  // stages that are read sealed, then open
    QUIRE_DEVICE_UNROLL
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t first = j * kTokens;
      const uint32_t last = first + kTokens - 1;
      if (first >= EndOf(true) || (last < window_begin && first >= sinks_end)) continue;
      if (first < EndOf(false)) forms |= 1u << j;
      if (last >= open_begin) forms |= 1u << (kStages + j);
    }
    needed_ = forms | forms << StageOf(2, 0);
    if constexpr (!kFolds) {
      if (shape_.value.dim > kMmaChannels) needed_ |= forms << StageOf(4, 0);
    }
    const uint64_t end = first_token_ + kSplitTokens;
    all_sealed_ =
        end <= tile_->position_min + 1 && end <= open_begin_ &&
        (window == 0 || first_token_ + window > tile_->position_max || end <= shape_.sink_tokens);
    self_.Sync();  // the split before is done with what the block's threads share
    FindSlots();
    if (!all_sealed_) FindVisible(split);
    self_.Sync();
    if constexpr (kEncoded) {
      LoadScales();
      self_.Sync();
    }
    unasked_ = needed_;
    buffers_.StartSplit(/*codes=*/forms >> kStages == 0);
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t ahead = 0; ahead + 1 < buffers_.count(); ++ahead) StartNext(ahead);
  }

  /// Where the numbers of a stage are, which is the next of those that are needed.
  template <bool kKeys>
  QUIRE_KERNEL const uint16_t* EnterStage(uint32_t number) {
    buffers_.template Wait<kKeys>(StageArgsOf(number));
    self_.Sync();
    const uint16_t* const here = buffers_.Enter();
    StartNext(buffers_.count() - 2);
    return here;
  }

  QUIRE_KERNEL const StageBuffers<Thread, kFolds, kStaging>& buffers() const { return buffers_; }

  /// Neither is for a split of which all tokens are sealed.
  QUIRE_KERNEL bool IsOpen(uint32_t q, uint32_t in_split) const {
    return in_split >= Visible()[q * 2 + 1] >> 16;
  }
  /// Seen, and read in this form.
  QUIRE_KERNEL bool IsRead(uint32_t q, uint32_t in_split, bool open) const {
    const uint32_t low = Visible()[q * 2];
    const bool seen = in_split < (low & 0xffffu) ||
                      (in_split >= low >> 16 && in_split < (Visible()[q * 2 + 1] & 0xffffu));
    return seen && IsOpen(q, in_split) == open;
  }

  /// [kSplitTokens], of sealed tokens.
  QUIRE_KERNEL const float* KeyScales() const { return Scales(0); }
  QUIRE_KERNEL const float* ValueScales() const { return Scales(1); }
  QUIRE_KERNEL const float* KeyMids() const { return Scales(2); }
  QUIRE_KERNEL const float* ValueMids() const { return Scales(3); }

 private:
  /// attention::FirstOpenBlock, without a division.
  QUIRE_KERNEL uint64_t FirstOpen(uint64_t position) const {
    if (mma_.one_form) return UINT64_MAX;
    const uint64_t own_block = position >> layout_.block_bits;
    return (own_block - std::min<uint64_t>(own_block, shape_.open_blocks)) << layout_.block_bits;
  }
  /// A token as one of the split's: 0 where it lies before, kSplitTokens where it lies behind.
  QUIRE_KERNEL uint32_t InSplit(uint64_t token) const {
    if (token <= first_token_) return 0;
    return static_cast<uint32_t>(std::min<uint64_t>(token - first_token_, kSplitTokens));
  }
  /// The tile's rows read no token of the split from here on in this form.
  QUIRE_KERNEL uint32_t EndOf(bool open) const { return ends_ >> (open ? 16 : 0) & 0xffffu; }

  /// [kSplitBlocksMax]: slots of the split's blocks.
  QUIRE_KERNEL uint32_t* Slots(bool open) const {
    return reinterpret_cast<uint32_t*>(self_.shared() + layout_.slots_at) +
           (open ? kSplitBlocksMax : 0u);
  }
  /// Those of blocks that are read.
  QUIRE_KERNEL void FindSlots() {
    const uint64_t first_block = first_token_ >> layout_.block_bits;
    warp_.Share(2 * kSplitBlocksMax, [&](uint32_t i) {
      const bool open = i >= kSplitBlocksMax;
      const uint32_t block = i % kSplitBlocksMax;
      uint32_t slot = kNoSlot;
      if (block << layout_.block_bits < EndOf(open)) {
        const BlockTable& table = open ? args_.tables.open : args_.tables.sealed;
        slot = table.Row(tile_->sequence)[first_block + block];
      }
      Slots(open)[block] = slot;
    });
  }

  /// [query vectors][2]: sinks' end and begin; end and first open token.
  QUIRE_KERNEL uint32_t* Visible() const {
    return reinterpret_cast<uint32_t*>(self_.shared() + layout_.visible_at);
  }
  QUIRE_KERNEL void FindVisible(uint64_t split) {
    warp_.Share(layout_.queries, [&](uint32_t q) {
      const uint64_t position = q < tile_->queries() ? RowOf(args_, *tile_, q).position : 0;
      const attention::VisibleTokens seen = attention::VisibleInSplit(shape_, position, split);
      uint32_t sinks_end = 0;
      uint32_t begin = 0;
      uint32_t end = 0;
      if (seen.count > 0) {
        const attention::TokenRange last = seen.count == 2 ? seen.ranges[1] : seen.ranges[0];
        begin = last.begin;
        end = last.end;
        if (seen.count == 2) sinks_end = seen.ranges[0].end;
      }
      const uint64_t first_open = std::max(FirstOpen(position), first_token_) - first_token_;
      const auto open = static_cast<uint32_t>(std::min<uint64_t>(first_open, kSplitTokens));
      Visible()[q * 2] = sinks_end | begin << 16;
      Visible()[q * 2 + 1] = end | open << 16;
    });
  }
  QUIRE_KERNEL static uint32_t LowestOne(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return static_cast<uint32_t>(__ffs(static_cast<int>(bits)) - 1);
#else
    return static_cast<uint32_t>(std::countr_zero(bits));
#endif
  }

  QUIRE_KERNEL float* Scales(uint32_t which) const {
    const uint32_t at = which * kSplitTokens;
    return reinterpret_cast<float*>(self_.shared() + layout_.scales_at) + at;
  }
  QUIRE_KERNEL void LoadScales() {
    if (KeyEncodes()) LoadScalesOf(shape_.key, mma_.key_mids, 0);
    if (ValueEncodes()) LoadScalesOf(shape_.value, mma_.value_mids, 1);
  }
  QUIRE_KERNEL void LoadScalesOf(const StreamLayout& stream, bool mids, uint32_t which) {
    warp_.Share(kSplitTokens, [&](uint32_t t) {
      float scale = 0.0f;
      float mid = 0.0f;
      const std::byte* slot = nullptr;
      if (IsNeeded(StageOf(0, t / kTokens)) && t < EndOf(false)) {
        slot = args_.tables.sealed.SlotAt(Slots(false)[t >> layout_.block_bits]);
      }
      if (slot != nullptr) {
        const uint32_t in_block = t & (stream.block_tokens - 1);
        const std::byte* const at = slot + codec::ScaleAt(stream, kv_head_, in_block);
        scale = WidenF16(Load<uint16_t>(at));
        if (mids) mid = WidenF16(LoadHalf(at, stream.block_tokens));
      }
      Scales(which)[t] = scale;
      if (mids) Scales(which + 2)[t] = mid;
    });
  }

  QUIRE_KERNEL StageArgs StageArgsOf(uint32_t number) const {
    const uint32_t kind = number / kStages;
    const bool open = kind % 2 != 0;
    StageArgs stage{.table = open ? &args_.tables.open : &args_.tables.sealed,
                    .slots = Slots(open),
                    .block_bits = layout_.block_bits,
                    .kv_head = kv_head_,
                    .first = number % kStages * kTokens,
                    .end = EndOf(open),
                    .boxes = &mma_.boxes[kind < 2 ? kind : 2 + kind % 2]};
    if (kind < 2) {
      stage.stream = open ? &attention::OpenKey(shape_) : &shape_.key;
      stage.channels = shape_.key.dim;
    } else {
      stage.stream = open ? &attention::OpenValue(shape_) : &shape_.value;
      stage.channel_begin = (kind / 2 - 1) * kMmaChannels;
      stage.channels = std::min(shape_.value.dim - stage.channel_begin, uint32_t{kMmaChannels});
    }
    return stage;
  }

  /// Asks for the next stage, if there is one.
  QUIRE_KERNEL void StartNext(uint32_t ahead) {
    if (unasked_ == 0) return buffers_.StartNone();
    const uint32_t number = LowestOne(unasked_);
    unasked_ &= unasked_ - 1;
    const StageArgs stage = StageArgsOf(number);
    if (number < 2 * kStages) {
      buffers_.template Start<true>(stage, ahead);
    } else {
      buffers_.template Start<false>(stage, ahead);
    }
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MmaArgs& mma_;
  const SplitsArgs& args_;
  const AttentionShape& shape_;
  const MmaShared& layout_;
  StageBuffers<Thread, kFolds, kStaging> buffers_;

  const Tile* tile_ = nullptr;
  uint32_t kv_head_ = 0;
  // Tokens that rows of the tile read: sealed ones before, open ones from and before.
  uint64_t sealed_end_ = 0;
  uint64_t open_begin_ = 0;
  uint64_t open_end_ = 0;

  uint64_t first_token_ = 0;  // of the split
  uint32_t ends_ = 0;         // EndOf
  // Stages, of which there are at most 32: blocks that fold have one group of channels, others few
  // stages.
  uint32_t needed_ = 0;
  uint32_t unasked_ = 0;  // of those
  bool all_sealed_ = false;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_READER_INL_H_

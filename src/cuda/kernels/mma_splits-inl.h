// The kernel that computes splits with matrix instructions (cuda/kernels/mma_attend.h), in the
// order of docs/numerics.md section 5.
//
// A warp has the scores of its query vectors with a whole split in registers, then their weights; K
// and V pass through shared memory, where the warps of a block share them: while some tokens are
// multiplied, the next are on their way. Of scores the rows of an instruction are tokens, of outputs
// channels; its columns are query vectors, so that eight of them cost half of sixteen.
#ifndef QUIRE_CUDA_KERNELS_MMA_SPLITS_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_SPLITS_INL_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "attention/scalar.h"
#include "attention/visible.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_buffers-inl.h"
#include "cuda/kernels/mma_fold-inl.h"
#include "cuda/kernels/mma_query-inl.h"
#include "cuda/kernels/mma_stage-inl.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// kTiles: of kMmaColumns query vectors that a warp has.
template <class Thread, bool kFolds, Staging kStaging, uint32_t kTiles>
class MmaSplits {
 public:
  QUIRE_KERNEL MmaSplits(Thread& self, const MmaArgs& mma)
      : self_(self),
        warp_(self),
        mma_(mma),
        args_(mma.splits),
        shape_(mma.splits.shape),
        layout_(mma.shared),
        queries_(self, mma),
        buffers_(self, mma) {}

  QUIRE_KERNEL void Run() {
    buffers_.Open();
    if constexpr (kFolds) return FoldTiles();
    const BlockWork work = args_.work[self_.block()];
    FindTile(work.tile);
    const uint64_t end = std::min(work.split + args_.splits_per_block, tile_->split_end);
    StartSplit(work.split);
    LoadQueries();  // while the first tokens are on their way
    for (uint64_t split = work.split;;) {
      FindWeights();
      const uint64_t states = tile_->states_begin + (split - tile_->split_begin) * tile_->queries();
      for (uint32_t group = 0; group * kMmaChannels < shape_.value.dim; ++group) {
        SumValues(group);
        Leave(states, group);
      }
      if (++split >= end) return;
      StartSplit(split);
    }
  }

 private:
  using Queries = MmaQueries<Thread, WarpsOf(kFolds), kTiles>;
  static constexpr bool kEncoded = kStaging == Staging::kDecoded;
  static constexpr uint32_t kQueries = Queries::kOfLane;
  static constexpr uint32_t kStepsOfStage = kStageTokens / kMmaStep;
  // Of a lane.
  static constexpr uint32_t kScoresOfStep = kTiles * 4;
  static constexpr uint32_t kScoresOfStage = kStepsOfStage * kScoresOfStep;
  static constexpr uint32_t kSums = kMmaChannels / kMmaStep * kTiles * 4;

  // Scores of a lane: [step of sixteen tokens][tile][token / 8 % 2][query % 2].
  QUIRE_KERNEL static constexpr uint32_t QueryOf(uint32_t i) {
    return i % kScoresOfStep / 4 * 2 + i % 2;
  }
  QUIRE_KERNEL static uint32_t TokenOf(uint32_t lane, uint32_t i) {
    return i / kScoresOfStep * kMmaStep + i / 2 % 2 * 8 + lane / 4;
  }
  // Sums of a lane: [step of sixteen channels][tile][channel / 8 % 2][query % 2].
  QUIRE_KERNEL static constexpr uint32_t SumAt(uint32_t step, uint32_t tile) {
    return (step * kTiles + tile) * 4;
  }

  // Blocks that fold.

  QUIRE_KERNEL void FoldTiles() {
    MmaFold<Thread> fold(warp_, mma_, layout_, self_.shared(), self_.block());
    for (uint32_t tile = self_.block(); tile < args_.tile_count; tile += mma_.blocks) {
      FindTile(tile);
      LoadQueries();
      for (uint32_t i = 0; i < kLanes; ++i) {
        const uint32_t lane = LaneOfLeaf(i);
        fold.Clear();
        uint64_t split = tile_->split_begin + (lane - tile_->split_begin) % kLanes;
        for (; split < tile_->split_end; split += kLanes) {
          StartSplit(split);
          if (needed_ == 0) continue;
          FindWeights();
          SumValues(0);
          fold.Add(max_, sum_, out_);
        }
        fold.Join(i);
      }
      fold.Finish(*tile_, args_.rows);
    }
  }

  QUIRE_KERNEL void FindTile(uint32_t number) {
    tile_ = args_.tiles + number;
    kv_head_ = tile_->head_begin / (shape_.query_heads / shape_.key.heads);
    open_begin_ = FirstOpen(tile_->position_min);
    open_end_ = tile_->position_max + 1;
    sealed_end_ = std::min(open_end_, FirstOpen(tile_->position_max));
  }
  QUIRE_KERNEL void LoadQueries() {
    queries_.Load(*tile_);
    if constexpr (kEncoded) {
      if (mma_.key_mids) query_sum_ = queries_.Sums();
    }
  }

  QUIRE_KERNEL bool KeyEncodes() const { return kEncoded && shape_.key.codec > Codec::kBf16; }
  QUIRE_KERNEL bool ValueEncodes() const { return kEncoded && shape_.value.codec > Codec::kBf16; }

  // The parts of a split that are read.

  /// Bits of `needed_`: stages of K sealed, K open, then for every group of channels V sealed, V
  /// open.
  QUIRE_KERNEL static uint32_t StageOf(uint32_t kind, uint32_t j) { return kind * kStages + j; }
  QUIRE_KERNEL bool IsNeeded(uint32_t number) const { return (needed_ >> number & 1u) != 0; }

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
      const uint32_t first = j * kStageTokens;
      const uint32_t last = first + kStageTokens - 1;
      if (first >= EndOf(true) || (last < window_begin && first >= sinks_end)) continue;
      if (first < EndOf(false)) forms |= 1u << j;
      if (last >= open_begin) forms |= 1u << (kStages + j);
    }
    needed_ = forms | uint64_t{forms} << StageOf(2, 0);
    if (shape_.value.dim > kMmaChannels) needed_ |= uint64_t{forms} << StageOf(4, 0);
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
    uint64_t next = needed_;
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t ahead = 0; ahead + 1 < layout_.buffers && next != 0; ++ahead) {
      StartStage(LowestOne(next), ahead);
      next &= next - 1;
    }
  }

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
    warp_.Share(WarpsOf(kFolds) * Queries::kOfWarp, [&](uint32_t q) {
      const uint64_t position = q < tile_->queries() ? RowOf(args_, *tile_, q).position : 0;
      const attention::VisibleTokens seen = attention::VisibleInSplit(shape_, position, split);
      uint32_t sinks_end = 0;
      uint32_t begin = 0;
      uint32_t end = 0;
      if (seen.count > 0) {
        const attention::TokenRange last = seen.ranges[seen.count - 1];
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

  QUIRE_KERNEL static uint32_t LowestOne(uint64_t bits) {
#if defined(__CUDA_ARCH__)
    return static_cast<uint32_t>(__ffsll(static_cast<long long>(bits)) - 1);
#else
    return static_cast<uint32_t>(std::countr_zero(bits));
#endif
  }

  // Scales and mids of sealed tokens, times the unit of codes.

  QUIRE_KERNEL float* Scales(uint32_t which) const {
    const uint32_t at = which * kSplitTokens;
    return reinterpret_cast<float*>(self_.shared() + layout_.scales_at) + at;
  }

  QUIRE_KERNEL void LoadScales() {
    if (KeyEncodes()) LoadScalesOf(shape_.key, mma_.key_mids, 0);
    if (ValueEncodes()) LoadScalesOf(shape_.value, mma_.value_mids, 2);
  }
  QUIRE_KERNEL void LoadScalesOf(const StreamLayout& stream, bool mids, uint32_t which) {
    float unit = 1.0f;
    Any::With(stream.codec, [&](auto format) {
      using Format = decltype(format);
      if constexpr (kIsInteger<Format>) unit = 1.0f / Format::kDivisor;
    });
    warp_.Share(kSplitTokens, [&](uint32_t t) {
      float scale = 0.0f;
      float mid = 0.0f;
      const std::byte* slot = nullptr;
      if (IsNeeded(StageOf(0, t / kStageTokens)) && t < EndOf(false)) {
        slot = args_.tables.sealed.SlotAt(Slots(false)[t >> layout_.block_bits]);
      }
      if (slot != nullptr) {
        const uint32_t in_block = t & (stream.block_tokens - 1);
        const std::byte* const at = slot + codec::ScaleAt(stream, kv_head_, in_block);
        scale = WidenF16(Load<uint16_t>(at)) * unit;
        if (mids) mid = WidenF16(LoadHalf(at, stream.block_tokens));
      }
      Scales(which)[t] = scale;
      Scales(which + 1)[t] = mid;
    });
  }

  // Stages.

  QUIRE_KERNEL StageArgs StageArgsOf(uint32_t number) const {
    const uint32_t kind = number / kStages;
    const bool open = kind % 2 != 0;
    StageArgs stage{.table = open ? &args_.tables.open : &args_.tables.sealed,
                    .slots = Slots(open),
                    .block_bits = layout_.block_bits,
                    .kv_head = kv_head_,
                    .first = number % kStages * kStageTokens,
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

  QUIRE_KERNEL void StartStage(uint32_t number, uint32_t ahead) {
    const StageArgs stage = StageArgsOf(number);
    const bool open = number / kStages % 2 != 0;
    if (number < 2 * kStages) {
      buffers_.template Start<true>(stage, ahead, TypeOfKeys(shape_, open));
    } else {
      buffers_.template Start<false>(stage, ahead, TypeOfValues(shape_, open));
    }
  }

  /// Where the numbers of a stage are, which is the next of those that are needed.
  template <bool kKeys>
  QUIRE_KERNEL const uint16_t* EnterStage(uint32_t number) {
    buffers_.template Wait<kKeys>(StageArgsOf(number));
    self_.Sync();
    const uint16_t* const here = buffers_.Enter();
    uint64_t later = needed_ >> number >> 1;
    // Those that are on their way already.
    for (uint32_t i = 2; i < layout_.buffers; ++i) later &= later - 1;
    if (later != 0) StartStage(number + 1 + LowestOne(later), layout_.buffers - 2);
    return here;
  }

  /// f(constant) of stage j, whose scores are registers of their own.
  template <typename F>
  QUIRE_KERNEL static void WithStage(uint32_t j, const F& f) {
    static_assert(kStages == 8);
    switch (j) {
      case 0: return f(std::integral_constant<uint32_t, 0>());
      case 1: return f(std::integral_constant<uint32_t, 1>());
      case 2: return f(std::integral_constant<uint32_t, 2>());
      case 3: return f(std::integral_constant<uint32_t, 3>());
      case 4: return f(std::integral_constant<uint32_t, 4>());
      case 5: return f(std::integral_constant<uint32_t, 5>());
      case 6: return f(std::integral_constant<uint32_t, 6>());
      default: return f(std::integral_constant<uint32_t, 7>());
    }
  }

  // Scores, then weights.

  QUIRE_KERNEL void FindWeights() {
    if (!all_sealed_) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kStages * kScoresOfStage; ++i) scores_(lane, i) = kNothingSeen;
      });
    }
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t form = 0; form < 2; ++form) {
      const bool open = form != 0;
      if ((needed_ >> StageOf(form, 0) & ((1u << kStages) - 1)) == 0) continue;
      Score(open);
    }
    FindMax();
    Weigh();
  }

  QUIRE_KERNEL void Score(bool open) {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t number = StageOf(open ? 1 : 0, j);
      if (!IsNeeded(number)) continue;
      const uint16_t* const keys = EnterStage<true>(number);
      Fragment<float, kScoresOfStage> sums;
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; ++i) sums(lane, i) = 0.0f;
      });
      With16(TypeOfKeys(shape_, open), [&](auto type) {
        if (queries_.has_low()) {
          MultiplyKeys<type.value, true>(keys, open, sums);
        } else {
          MultiplyKeys<type.value, false>(keys, open, sums);
        }
      });
      KeepScores(j, open, sums);
    }
  }

  template <Codec kType, bool kLow>
  QUIRE_KERNEL void MultiplyKeys(const uint16_t* keys, bool open,
                                 Fragment<float, kScoresOfStage>& sums) {
    const uint32_t dim = shape_.key.dim;
    const uint16_t* const queries = queries_.High(open);
    constexpr uint32_t kChannels = Queries::kSteps * kMmaStep;
    QUIRE_DEVICE_UNROLL_BY(2)
    for (uint32_t k = 0; k + kChannels <= dim; k += kChannels) {
      MultiplyChannels<kType, kLow, Queries::kSteps>(keys, queries, k, sums);
    }
    if constexpr (Queries::kSteps > 1) {
      if (dim % kChannels != 0) {
        MultiplyChannels<kType, kLow, 1>(keys, queries, dim - kMmaStep, sums);
      }
    }
  }

  /// kSteps of sixteen channels.
  template <Codec kType, bool kLow, uint32_t kSteps>
  QUIRE_KERNEL void MultiplyChannels(const uint16_t* keys, const uint16_t* queries, uint32_t k,
                                     Fragment<float, kScoresOfStage>& sums) {
    const auto high = queries_.Columns(queries, k);
    Fragment<uint32_t, 4> low;
    if constexpr (kLow) low = queries_.Columns(queries_.LowOf(queries), k);
    QUIRE_DEVICE_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t t = 0; t < kStepsOfStage; ++t) {
        const auto tokens = LoadMatrices<true>(
            [&](uint32_t lane) { return keys + buffers_.KeysAt(lane, t, k + step * kMmaStep); });
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kTiles; ++n) {
          const uint32_t at = t * kScoresOfStep + n * 4;
          MultiplyAdd<kType>(sums, at, tokens, high, Queries::WordOf(step, n));
          if constexpr (kLow) {
            MultiplyAdd<kType>(sums, at, tokens, low, Queries::WordOf(step, n));
          }
        }
      }
    }
  }

  QUIRE_KERNEL void KeepScores(uint32_t j, bool open, Fragment<float, kScoresOfStage>& sums) {
    const uint32_t first = j * kStageTokens;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kScoresOfStage; ++i) {
        const uint32_t t = first + TokenOf(lane, i);
        float value = sums(lane, i) * shape_.scale;
        if (kEncoded && !open && mma_.key_mids) {
          value = Fma(Scales(0)[t], value, Scales(1)[t] * query_sum_(lane, QueryOf(i)));
        } else if (!open && KeyEncodes()) {
          value = value * Scales(0)[t];
        }
        sums(lane, i) = value;
      }
    });
    if (all_sealed_) return KeepAll(j, sums);
    Fragment<uint32_t, 1> read;  // bit i: score i is
    warp_.Lanes([&](uint32_t lane) {
      read(lane, 0) = 0;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kScoresOfStage; ++i) {
        const uint32_t q = queries_.NumberOf(lane, QueryOf(i));
        if (IsRead(q, first + TokenOf(lane, i), open)) read(lane, 0) |= 1u << i;
      }
    });
    WithStage(j, [&](auto stage) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; ++i) {
          if ((read(lane, 0) >> i & 1u) == 0) continue;
          scores_(lane, stage.value * kScoresOfStage + i) = sums(lane, i);
        }
      });
    });
  }
  QUIRE_KERNEL void KeepAll(uint32_t j, const Fragment<float, kScoresOfStage>& sums) {
    WithStage(j, [&](auto stage) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; ++i) {
          scores_(lane, stage.value * kScoresOfStage + i) = sums(lane, i);
        }
      });
    });
  }

  QUIRE_KERNEL void FindMax() {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) max_(lane, r) = kNothingSeen;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kStages * kScoresOfStage; ++i) {
        max_(lane, QueryOf(i)) = Max(max_(lane, QueryOf(i)), scores_(lane, i));
      }
    });
    for (uint32_t mask = 16; mask >= 4; mask /= 2) {
      const auto other = warp_.Exchanged(max_, mask);
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t r = 0; r < kQueries; ++r) max_(lane, r) = Max(max_(lane, r), other(lane, r));
      });
    }
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) max_(lane, r) += 0.0f;
    });
  }

  /// A lane has two of the sixteen partial sums of each query vector: those of its tokens.
  QUIRE_KERNEL void Weigh() {
    Fragment<float, kQueries * 2> sums;  // [query][token / 8 % 2]
    Fragment<float, kQueries * 2> mids;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kQueries * 2; ++i) sums(lane, i) = mids(lane, i) = 0.0f;
      float max[kQueries];  // finite, so that what is not seen has the weight 0
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        max[r] = max_(lane, r) == kNothingSeen ? 0.0f : max_(lane, r);
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kStages * kScoresOfStage; ++i) {
        const uint32_t r = QueryOf(i);
        const uint32_t partial = r * 2 + i / 2 % 2;
        float weight = attention::Exp(scores_(lane, i) - max[r]);
        sums(lane, partial) += weight;
        if (ValueEncodes()) {
          const uint32_t t = TokenOf(lane, i);
          if (all_sealed_ || !IsOpen(queries_.NumberOf(lane, r), t)) {
            if (mma_.value_mids) {
              mids(lane, partial) = Fma(weight, Scales(3)[t], mids(lane, partial));
            }
            weight = weight * Scales(2)[t];
          }
        }
        scores_(lane, i) = weight;
      }
    });
    sum_ = Tree(sums);
    if (kEncoded && mma_.value_mids) mid_sum_ = Tree(mids);
  }

  /// docs/numerics.md, Tree16, of all query vectors.
  QUIRE_KERNEL Fragment<float, kQueries> Tree(const Fragment<float, kQueries * 2>& partials) {
    Fragment<float, kQueries> sum;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        sum(lane, r) = partials(lane, r * 2) + partials(lane, r * 2 + 1);
      }
    });
    for (uint32_t mask = 16; mask >= 4; mask /= 2) {
      const auto other = warp_.Exchanged(sum, mask);
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t r = 0; r < kQueries; ++r) sum(lane, r) += other(lane, r);
      });
    }
    return sum;
  }

  // Values.

  QUIRE_KERNEL void SumValues(uint32_t group) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) out_(lane, i) = 0.0f;
    });
    const uint32_t channels =
        std::min(shape_.value.dim - group * kMmaChannels, uint32_t{kMmaChannels});
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t form = 0; form < 2; ++form) {
      const bool open = form != 0;
      const uint32_t kind = 2 + group * 2 + form;
      if ((needed_ >> StageOf(kind, 0) & ((1u << kStages) - 1)) == 0) continue;
      AddValues(kind, channels, open);
    }
    if (!kEncoded || !mma_.value_mids) return;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) out_(lane, i) += mid_sum_(lane, QueryOf(i));
    });
  }

  QUIRE_KERNEL void AddValues(uint32_t kind, uint32_t channels, bool open) {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t number = StageOf(kind, j);
      if (!IsNeeded(number)) continue;
      const uint16_t* const values = EnterStage<false>(number);
      With16(TypeOfValues(shape_, open),
             [&](auto type) { MultiplyValues<type.value>(values, channels, j, open); });
    }
  }

  /// Weights of a stage as second factors, [step][tile][token / 8 % 2].
  using Factors = Fragment<uint32_t, kScoresOfStage / 2>;

  template <Codec kType>
  QUIRE_KERNEL void MultiplyValues(const uint16_t* values, uint32_t channels, uint32_t j,
                                   bool open) {
    Factors high;
    Factors low;
    SplitWeights<kType>(j, open, high, low);
    QUIRE_DEVICE_UNROLL
    for (uint32_t step = 0; step < kStepsOfStage; ++step) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t m = 0; m < kMmaChannels / kMmaStep; ++m) {
        if (m * kMmaStep >= channels) continue;
        const auto rows = LoadMatrices<true>(
            [&](uint32_t lane) { return values + buffers_.ValuesAt(lane, step, m); });
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kTiles; ++n) {
          MultiplyAdd<kType>(out_, SumAt(m, n), rows, high, (step * kTiles + n) * 2);
          MultiplyAdd<kType>(out_, SumAt(m, n), rows, low, (step * kTiles + n) * 2);
        }
      }
    }
  }

  /// Those that are read in this form; others are zeros.
  template <Codec kType>
  QUIRE_KERNEL void SplitWeights(uint32_t j, bool open, Factors& high, Factors& low) {
    WithStage(j, [&](auto stage) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; i += 2) {
          const uint32_t at = stage.value * kScoresOfStage + i;
          const HighLow both = Split16<kType>(scores_(lane, at), scores_(lane, at + 1));
          high(lane, i / 2) = both.high;
          low(lane, i / 2) = both.low;
        }
      });
    });
    if (!all_sealed_) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; ++i) {
          const uint32_t t = j * kStageTokens + TokenOf(lane, i);
          if (IsOpen(queries_.NumberOf(lane, QueryOf(i)), t) == open) continue;
          const uint32_t other_half = i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
          high(lane, i / 2) &= other_half;
          low(lane, i / 2) &= other_half;
        }
      });
    }
    high = Transposed(high);
    low = Transposed(low);
  }

  /// The state of a split, with the sums of a group of channels.
  QUIRE_KERNEL void Leave(uint64_t states, uint32_t group) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        const uint32_t q = queries_.NumberOf(lane, r);
        if (q >= tile_->queries()) continue;
        if (group == 0 && lane / 4 == 0) {
          args_.states.max[states + q] = max_(lane, r);
          args_.states.sum[states + q] = sum_(lane, r);
        }
        if (max_(lane, r) == kNothingSeen) continue;
        float* const to = args_.states.out + (states + q) * shape_.value.dim;
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kMmaChannels / 8; ++i) {
          const uint32_t channel = group * kMmaChannels + i * 8 + lane / 4;
          if (channel >= shape_.value.dim) continue;
          to[channel] = out_(lane, SumAt(i / 2, r / 2) + i % 2 * 2 + r % 2);
        }
      }
    });
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MmaArgs& mma_;
  const SplitsArgs& args_;
  const AttentionShape& shape_;
  const MmaShared& layout_;
  Queries queries_;
  StageBuffers<Thread, kStaging> buffers_;

  const Tile* tile_ = nullptr;
  uint32_t kv_head_ = 0;
  // Tokens that rows of the tile read: sealed ones before, open ones from and before.
  uint64_t sealed_end_ = 0;
  uint64_t open_begin_ = 0;
  uint64_t open_end_ = 0;
  Fragment<float, kQueries> query_sum_;

  uint64_t first_token_ = 0;  // of the split
  uint32_t ends_ = 0;         // EndOf
  uint64_t needed_ = 0;
  bool all_sealed_ = false;  // by all query vectors, and seen

  Fragment<float, kStages * kScoresOfStage> scores_;  // then weights
  Fragment<float, kQueries> max_;
  Fragment<float, kQueries> sum_;
  Fragment<float, kQueries> mid_sum_;
  Fragment<float, kSums> out_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_SPLITS_INL_H_

// The kernel that computes splits with matrix instructions (cuda/kernels/mma_attend.h), in the
// order of docs/numerics.md section 5.
//
// A warp has sixteen query vectors and their scores with a whole split in registers, first as
// scores, then as weights; K and V pass through shared memory, where the warps of a block share
// them: while some tokens are multiplied, the next are on their way.
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
#include "cuda/kernels/mma_stage-inl.h"
#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

template <class Thread, bool kFolds, Staging kStaging>
class MmaSplits {
 public:
  QUIRE_KERNEL MmaSplits(Thread& self, const MmaArgs& mma)
      : self_(self),
        warp_(self),
        mma_(mma),
        args_(mma.splits),
        shape_(mma.splits.shape),
        layout_(mma.shared),
        buffers_(self, mma) {}

  QUIRE_KERNEL void Run() {
    buffers_.Open();
    if constexpr (kFolds) return FoldTiles();
    const uint32_t number = FindTile(args_, self_.block());
    StartTile(number);
    const uint64_t first =
        tile_->split_begin +
        uint64_t{self_.block() - args_.tile_blocks[number]} * args_.splits_per_block;
    const uint64_t end = std::min(first + args_.splits_per_block, tile_->split_end);
    for (uint64_t split = first; split < end; ++split) {
      Weights(split);
      const uint64_t states = tile_->states_begin + (split - tile_->split_begin) * tile_->queries();
      for (uint32_t group = 0; group * kMmaChannels < shape_.value.dim; ++group) {
        SumValues(group);
        Leave(states, group);
      }
    }
  }

 private:
  static constexpr bool kEncoded = kStaging == Staging::kDecoded;
  static constexpr uint32_t kWarps = WarpsOf(kFolds);
  static constexpr uint32_t kBuffers = BuffersOf(kStaging);
  static constexpr uint32_t kTilesOfStage = kStageTokens / 8;  // of eight tokens
  static constexpr uint32_t kScoresOfStage = kTilesOfStage * 4;

  // Blocks that fold.

  QUIRE_KERNEL void FoldTiles() {
    MmaFold<Thread> fold(warp_, mma_, layout_, self_.shared(), self_.block());
    for (uint32_t tile = self_.block(); tile < args_.tile_count; tile += mma_.blocks) {
      StartTile(tile);
      for (uint32_t i = 0; i < kLanes; ++i) {
        const uint32_t lane = LaneOfLeaf(i);
        fold.Clear();
        uint64_t split = tile_->split_begin + (lane - tile_->split_begin) % kLanes;
        for (; split < tile_->split_end; split += kLanes) {
          Weights(split);
          if (needed_ == 0) continue;
          SumValues(0);
          fold.Add(max_, sum_, out_);
        }
        fold.Join(i);
      }
      fold.Finish(*tile_, args_.rows);
    }
  }

  QUIRE_KERNEL bool KeyEncodes() const { return kEncoded && shape_.key.codec > Codec::kBf16; }
  QUIRE_KERNEL bool ValueEncodes() const { return kEncoded && shape_.value.codec > Codec::kBf16; }

  // Query vectors.

  QUIRE_KERNEL void StartTile(uint32_t number) {
    tile_ = args_.tiles + number;
    kv_head_ = tile_->head_begin / (shape_.query_heads / shape_.key.heads);
    self_.Sync();  // the tile before is done with its queries
    warp_.One([&] { *Flag() = 0; });
    self_.Sync();
    LoadQueries();
    self_.Sync();
    has_low_ = *Flag() != 0;
    if constexpr (kEncoded) {
      if (mma_.key_mids) SumQueries();
    }
  }

  QUIRE_KERNEL uint32_t* Flag() const {
    return reinterpret_cast<uint32_t*>(self_.shared() + layout_.flag_at);
  }
  /// Of a lane's two query vectors.
  QUIRE_KERNEL uint32_t QueryOf(uint32_t lane, uint32_t row) const {
    return warp_.number() * kMmaRows + lane / 4 + row * 8;
  }
  /// [rows][query_stride]: high parts; low ones follow.
  QUIRE_KERNEL uint16_t* Queries(bool open) const {
    const bool second = open && TypeOfKeys(shape_, false) != TypeOfKeys(shape_, true);
    return reinterpret_cast<uint16_t*>(self_.shared()) +
           (second ? 2 * uint64_t{layout_.query_numbers} : 0);
  }

  QUIRE_KERNEL float QueryAt(uint32_t q, uint32_t d) const {
    if (q >= tile_->queries()) return 0.0f;
    const uint32_t head = tile_->head_begin + q % tile_->heads;
    return RowOf(args_, *tile_, q).queries[uint64_t{head} * shape_.key.dim + d];
  }

  QUIRE_KERNEL void LoadQueries() {
    const uint32_t words = shape_.key.dim / 2;
    if (!shape_.key.rotated) {
      warp_.Share(kWarps * kMmaRows * words, [&](uint32_t i) {
        const uint32_t q = i / words;
        const uint32_t d = i % words * 2;
        StoreQuery(q, d, QueryAt(q, d), QueryAt(q, d + 1));
      });
      return;
    }
    float* const row = reinterpret_cast<float*>(self_.shared() + layout_.rows_at) +
                       uint64_t{warp_.number()} * layout_.row_floats;
    for (uint32_t r = 0; r < kMmaRows; ++r) {
      const uint32_t q = warp_.number() * kMmaRows + r;
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t d = lane; d < shape_.key.dim; d += kWarpLanes) row[d] = QueryAt(q, d);
      });
      warp_.Sync();
      RotateByWarp(warp_, row, shape_.key.dim);
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t d = lane * 2; d < shape_.key.dim; d += 2 * kWarpLanes) {
          StoreQuery(q, d, row[d], row[d + 1]);
        }
      });
      warp_.Sync();
    }
  }

  QUIRE_KERNEL void StoreQuery(uint32_t q, uint32_t d, float first, float second) {
    Store(Queries(false), TypeOfKeys(shape_, false), q, d, first, second);
    if (Queries(true) != Queries(false)) {
      Store(Queries(true), TypeOfKeys(shape_, true), q, d, first, second);
    }
  }
  QUIRE_KERNEL void Store(uint16_t* to, Codec half, uint32_t q, uint32_t d, float first,
                          float second) {
    With16(half, [&](auto type) {
      const HighLow both =
          Split16<type.value>(InRange<type.value>(first), InRange<type.value>(second));
      const uint64_t at = uint64_t{q} * layout_.query_stride + d;
      *reinterpret_cast<uint32_t*>(to + at) = both.high;
      *reinterpret_cast<uint32_t*>(to + layout_.query_numbers + at) = both.low;
      if ((both.low & 0x7fff7fffu) != 0) *Flag() = 1;
    });
  }
  /// Finite numbers stay so.
  template <Codec kType>
  QUIRE_KERNEL static float InRange(float value) {
    constexpr float kMax = 65504.0f;
    if (kType != Codec::kF16 || !(std::abs(value) < std::numeric_limits<float>::infinity())) {
      return value;
    }
    return std::min(std::max(value, -kMax), kMax);
  }

  QUIRE_KERNEL Fragment<uint32_t, 4> LoadQueryRows(const uint16_t* queries, uint32_t k) const {
    const uint16_t* const from =
        queries + uint64_t{warp_.number()} * kMmaRows * layout_.query_stride + k;
    return LoadMatrices<false>([&](uint32_t lane) {
      const uint32_t at = lane % 16 * layout_.query_stride + lane / 16 * 8;
      return from + at;
    });
  }

  /// Sums of query vectors: their products with ones.
  QUIRE_KERNEL void SumQueries() {
    Fragment<float, 4> sums;
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t i = 0; i < 4; ++i) sums(lane, i) = 0.0f;
    });
    With16(TypeOfKeys(shape_, false), [&](auto type) {
      Fragment<uint32_t, 4> ones;
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t i = 0; i < 4; ++i) ones(lane, i) = Pack16<type.value>(1.0f, 1.0f);
      });
      for (uint32_t k = 0; k < shape_.key.dim; k += kMmaRows) {
        MultiplyAdd<type.value>(sums, 0, LoadQueryRows(Queries(false), k), ones, 0);
        MultiplyAdd<type.value>(sums, 0, LoadQueryRows(Queries(false) + layout_.query_numbers, k),
                                ones, 0);
      }
    });
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t row = 0; row < 2; ++row) {
        query_sum_(lane, row) = sums(lane, row * 2) * shape_.scale;
      }
    });
  }

  // The parts of a split that are read.

  /// Bits of `needed_`: stages of K sealed, K open, then for every group of channels V sealed, V
  /// open.
  QUIRE_KERNEL static uint32_t StageOf(uint32_t kind, uint32_t j) { return kind * kStages + j; }
  QUIRE_KERNEL bool IsNeeded(uint32_t number) const { return (needed_ >> number & 1u) != 0; }

  QUIRE_KERNEL uint64_t FirstOpen(uint64_t position) const {
    if (mma_.one_form) return UINT64_MAX;
    return attention::FirstOpenBlock(shape_, position) * shape_.key.block_tokens;
  }

  QUIRE_KERNEL void StartSplit(uint64_t split) {
    first_token_ = split * kSplitTokens;
    const uint64_t sealed_end = FirstOpen(tile_->position_max);
    const uint64_t open_begin = FirstOpen(tile_->position_min);
    const uint32_t window = shape_.window_tokens;
    uint64_t needed = 0;
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint64_t first = first_token_ + uint64_t{j} * kStageTokens;
      const uint64_t last = first + kStageTokens - 1;
      const bool seen =
          first <= tile_->position_max &&
          (window == 0 || last + window > tile_->position_min || first < shape_.sink_tokens);
      if (!seen) continue;
      const uint64_t forms = (first < sealed_end ? uint64_t{1} << j : 0) |
                             (last >= open_begin ? uint64_t{1} << (kStages + j) : 0);
      for (uint32_t kind = 0; kind < 2 + 2 * DivUp(shape_.value.dim, kMmaChannels); kind += 2) {
        needed |= forms << StageOf(kind, 0);
      }
    }
    needed_ = needed;
    const uint64_t end = first_token_ + kSplitTokens;
    all_sealed_ =
        end <= tile_->position_min + 1 && end <= open_begin &&
        (window == 0 || first_token_ + window > tile_->position_max || end <= shape_.sink_tokens);
    if (!all_sealed_) {
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t row = 0; row < 2; ++row) FindVisible(lane, row, split);
      });
    }
    if constexpr (kEncoded) LoadScales();
    uint64_t next = needed_;
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t ahead = 0; ahead + 1 < kBuffers && next != 0; ++ahead) {
      StartStage(LowestOne(next), ahead);
      next &= next - 1;
    }
  }

  QUIRE_KERNEL void FindVisible(uint32_t lane, uint32_t row, uint64_t split) {
    const uint32_t q = QueryOf(lane, row);
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
    visible_(lane, row * 2) = sinks_end | begin << 16;
    visible_(lane, row * 2 + 1) = end | open << 16;
  }
  QUIRE_KERNEL bool IsOpen(uint32_t lane, uint32_t row, uint32_t in_split) const {
    return in_split >= visible_(lane, row * 2 + 1) >> 16;
  }
  /// Seen, and read in this form.
  QUIRE_KERNEL bool IsRead(uint32_t lane, uint32_t row, uint32_t in_split, bool open) const {
    const uint32_t low = visible_(lane, row * 2);
    const bool seen = in_split < (low & 0xffffu) ||
                      (in_split >= low >> 16 && in_split < (visible_(lane, row * 2 + 1) & 0xffffu));
    return seen && IsOpen(lane, row, in_split) == open;
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
    self_.Sync();  // those of the split before are read no more
    if (KeyEncodes()) LoadScalesOf(shape_.key, mma_.key_mids, 0);
    if (ValueEncodes()) LoadScalesOf(shape_.value, mma_.value_mids, 2);
  }
  QUIRE_KERNEL void LoadScalesOf(const StreamLayout& stream, bool mids, uint32_t which) {
    float unit = 1.0f;
    Any::With(stream.codec, [&](auto format) {
      using Format = decltype(format);
      if constexpr (kIsInteger<Format>) unit = 1.0f / Format::kDivisor;
    });
    const uint64_t end = SealedEnd();
    warp_.Share(kSplitTokens, [&](uint32_t t) {
      const uint64_t token = first_token_ + t;
      float scale = 0.0f;
      float mid = 0.0f;
      const std::byte* slot = nullptr;
      if (IsNeeded(StageOf(0, t / kStageTokens)) && token < end) {
        slot = args_.tables.sealed.BlockAt(tile_->sequence, token / stream.block_tokens);
      }
      if (slot != nullptr) {
        const auto in_block = static_cast<uint32_t>(token % stream.block_tokens);
        const std::byte* const at = slot + codec::ScaleAt(stream, kv_head_, in_block);
        scale = WidenF16(Load<uint16_t>(at)) * unit;
        if (mids) mid = WidenF16(LoadHalf(at, stream.block_tokens));
      }
      Scales(which)[t] = scale;
      Scales(which + 1)[t] = mid;
    });
  }
  QUIRE_KERNEL uint64_t SealedEnd() const {
    return std::min(tile_->position_max + 1, FirstOpen(tile_->position_max));
  }

  // Stages.

  QUIRE_KERNEL StageArgs StageArgsOf(uint32_t number) const {
    const uint32_t kind = number / kStages;
    const bool open = kind % 2 != 0;
    StageArgs stage{.table = open ? &args_.tables.open : &args_.tables.sealed,
                    .sequence = tile_->sequence,
                    .kv_head = kv_head_,
                    .first = first_token_ + uint64_t{number % kStages} * kStageTokens,
                    .end = open ? tile_->position_max + 1 : SealedEnd(),
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
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 2; i < kBuffers; ++i) later &= later - 1;
    if (later != 0) StartStage(number + 1 + LowestOne(later), kBuffers - 2);
    return here;
  }

  // Scores, then weights.

  QUIRE_KERNEL void Weights(uint64_t split) {
    StartSplit(split);
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kStages * kScoresOfStage; ++i) scores_(lane, i) = kNothingSeen;
    });
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
      const uint16_t* const queries = Queries(open);
      With16(TypeOfKeys(shape_, open),
             [&](auto type) { MultiplyKeys<type.value>(keys, queries, sums); });
      KeepScores(j, open, sums);
    }
  }

  template <Codec kType>
  QUIRE_KERNEL void MultiplyKeys(const uint16_t* keys, const uint16_t* queries,
                                 Fragment<float, kScoresOfStage>& sums) {
    for (uint32_t k = 0; k < shape_.key.dim; k += kMmaRows) {
      Fragment<uint32_t, 4> tokens[2];
      QUIRE_DEVICE_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        tokens[half] = LoadMatrices<true>([&](uint32_t lane) {
          return keys + buffers_.KeyAt(k, lane % 16, half * 16 + lane / 16 * 8);
        });
      }
      const auto high = LoadQueryRows(queries, k);
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTilesOfStage; ++n) {
        MultiplyAdd<kType>(sums, n * 4, high, tokens[n / 2], n % 2 * 2);
      }
      if (!has_low_) continue;
      const auto low = LoadQueryRows(queries + layout_.query_numbers, k);
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTilesOfStage; ++n) {
        MultiplyAdd<kType>(sums, n * 4, low, tokens[n / 2], n % 2 * 2);
      }
    }
  }

  QUIRE_KERNEL void KeepScores(uint32_t j, bool open, Fragment<float, kScoresOfStage>& sums) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kScoresOfStage; ++i) {
        const uint32_t t = j * kStageTokens + i / 4 * 8 + lane % 4 * 2 + i % 2;
        float value = sums(lane, i) * shape_.scale;
        if (kEncoded && !open && mma_.key_mids) {
          value = Fma(Scales(0)[t], value, Scales(1)[t] * query_sum_(lane, i / 2 % 2));
        } else if (!open && KeyEncodes()) {
          value = value * Scales(0)[t];
        }
        sums(lane, i) = value;
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t stage = 0; stage < kStages; ++stage) {
        if (stage != j) continue;
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; ++i) {
          const uint32_t t = stage * kStageTokens + i / 4 * 8 + lane % 4 * 2 + i % 2;
          if (all_sealed_ || IsRead(lane, i / 2 % 2, t, open)) {
            scores_(lane, stage * kScoresOfStage + i) = sums(lane, i);
          }
        }
      }
    });
  }

  QUIRE_KERNEL void FindMax() {
    warp_.Lanes([&](uint32_t lane) {
      max_(lane, 0) = max_(lane, 1) = kNothingSeen;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kStages * kScoresOfStage; ++i) {
        max_(lane, i / 2 % 2) = std::max(max_(lane, i / 2 % 2), scores_(lane, i));
      }
    });
    for (uint32_t mask = 1; mask <= 2; mask *= 2) {
      const auto other = warp_.Exchanged(max_, mask);
      warp_.Lanes([&](uint32_t lane) {
        for (uint32_t row = 0; row < 2; ++row) {
          max_(lane, row) = std::max(max_(lane, row), other(lane, row));
        }
      });
    }
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t row = 0; row < 2; ++row) max_(lane, row) += 0.0f;
    });
  }

  /// A lane has four of the sixteen partial sums of a row: those of its columns, and eight later.
  QUIRE_KERNEL void Weigh() {
    Fragment<float, 8> sums;  // [row][t / 8 % 2][t % 2]
    Fragment<float, 8> mids;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 8; ++i) sums(lane, i) = mids(lane, i) = 0.0f;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kStages * kScoresOfStage; ++i) {
        const uint32_t row = i / 2 % 2;
        const uint32_t partial = row * 4 + i / 4 % 2 * 2 + i % 2;
        const uint32_t t = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const float score = scores_(lane, i);
        float weight = score == kNothingSeen ? 0.0f : attention::Exp(score - max_(lane, row));
        sums(lane, partial) += weight;
        if (ValueEncodes() && (all_sealed_ || !IsOpen(lane, row, t))) {
          if (mma_.value_mids) mids(lane, partial) = Fma(weight, Scales(3)[t], mids(lane, partial));
          weight = weight * Scales(2)[t];
        }
        scores_(lane, i) = weight;
      }
    });
    sum_ = Tree(sums);
    if (kEncoded && mma_.value_mids) mid_sum_ = Tree(mids);
  }

  /// docs/numerics.md, Tree16, of both rows.
  QUIRE_KERNEL Fragment<float, 2> Tree(const Fragment<float, 8>& partials) {
    Fragment<float, 4> half;  // [row][t % 2]
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        half(lane, i) = partials(lane, i / 2 * 4 + i % 2) + partials(lane, i / 2 * 4 + 2 + i % 2);
      }
    });
    for (uint32_t mask = 2; mask > 0; mask /= 2) {
      const auto other = warp_.Exchanged(half, mask);
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) half(lane, i) += other(lane, i);
      });
    }
    Fragment<float, 2> sum;
    warp_.Lanes([&](uint32_t lane) {
      for (uint32_t row = 0; row < 2; ++row) {
        sum(lane, row) = half(lane, row * 2) + half(lane, row * 2 + 1);
      }
    });
    return sum;
  }

  // Values.

  QUIRE_KERNEL void SumValues(uint32_t group) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kMmaChannels / 2; ++i) out_(lane, i) = 0.0f;
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
      for (uint32_t i = 0; i < kMmaChannels / 2; ++i) out_(lane, i) += mid_sum_(lane, i / 2 % 2);
    });
  }

  QUIRE_KERNEL void AddValues(uint32_t kind, uint32_t channels, bool open) {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t number = StageOf(kind, j);
      if (!IsNeeded(number)) continue;
      const uint16_t* const values = EnterStage<false>(number);
      Fragment<float, kScoresOfStage> weights;
      WeightsOf(j, open, weights);
      With16(TypeOfValues(shape_, open),
             [&](auto type) { MultiplyValues<type.value>(values, channels, weights); });
    }
  }

  template <Codec kType>
  QUIRE_KERNEL void MultiplyValues(const uint16_t* values, uint32_t channels,
                                   const Fragment<float, kScoresOfStage>& weights) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t step = 0; step < kStageTokens / kMmaRows; ++step) {
      Fragment<uint32_t, 4> high;
      Fragment<uint32_t, 4> low;
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t at = (step * 2 + i / 2) * 4 + i % 2 * 2;
          const HighLow both = Split16<kType>(weights(lane, at), weights(lane, at + 1));
          high(lane, i) = both.high;
          low(lane, i) = both.low;
        }
      });
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kMmaChannels; n += kMmaDimStep) {
        if (n >= channels) continue;
        const auto columns = LoadMatrices<true>([&](uint32_t lane) {
          return values + buffers_.ValueAt(step * kMmaRows, lane % 16, n + lane / 16 * 8);
        });
        MultiplyAdd<kType>(out_, n / 2, high, columns, 0);
        MultiplyAdd<kType>(out_, n / 2 + 4, high, columns, 2);
        MultiplyAdd<kType>(out_, n / 2, low, columns, 0);
        MultiplyAdd<kType>(out_, n / 2 + 4, low, columns, 2);
      }
    }
  }

  /// Those of a stage that are read in this form; others are zeros.
  QUIRE_KERNEL void WeightsOf(uint32_t j, bool open, Fragment<float, kScoresOfStage>& weights) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t stage = 0; stage < kStages; ++stage) {
        if (stage != j) continue;
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kScoresOfStage; ++i) {
          const uint32_t t = stage * kStageTokens + i / 4 * 8;
          const bool is_read = all_sealed_ || IsOpen(lane, i / 2 % 2, t) == open;
          weights(lane, i) = is_read ? scores_(lane, stage * kScoresOfStage + i) : 0.0f;
        }
      }
    });
  }

  /// The state of a split, with the sums of a group of channels.
  QUIRE_KERNEL void Leave(uint64_t states, uint32_t group) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t row = 0; row < 2; ++row) {
        const uint32_t q = QueryOf(lane, row);
        if (q >= tile_->queries()) continue;
        if (group == 0 && lane % 4 == 0) {
          args_.states.max[states + q] = max_(lane, row);
          args_.states.sum[states + q] = sum_(lane, row);
        }
        if (max_(lane, row) == kNothingSeen) continue;
        float* const to = args_.states.out + (states + q) * shape_.value.dim;
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kMmaChannels / 8; ++n) {
          const uint32_t channel = group * kMmaChannels + n * 8 + lane % 4 * 2;
          if (channel >= shape_.value.dim) continue;
          to[channel] = out_(lane, n * 4 + row * 2);
          to[channel + 1] = out_(lane, n * 4 + row * 2 + 1);
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
  StageBuffers<Thread, kStaging> buffers_;

  const Tile* tile_ = nullptr;
  uint32_t kv_head_ = 0;
  bool has_low_ = false;
  Fragment<float, 2> query_sum_;

  uint64_t first_token_ = 0;  // of the split
  uint64_t needed_ = 0;
  bool all_sealed_ = false;        // by all query vectors, and seen
  Fragment<uint32_t, 4> visible_;  // for each row: sinks' end, begin; end, first open token

  Fragment<float, kStages * kScoresOfStage> scores_;  // [token / 8][row][token % 2], then weights
  Fragment<float, 2> max_;
  Fragment<float, 2> sum_;
  Fragment<float, 2> mid_sum_;
  Fragment<float, kMmaChannels / 2> out_;  // [channel / 8][row][channel % 2]
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_SPLITS_INL_H_

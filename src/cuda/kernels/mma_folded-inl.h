// The kernel of the class mma16 whose blocks go through all splits of a tile (cuda/kernels/
// mma_attend.h), in the order of docs/numerics.md section 5.
//
// A warp has sixteen query vectors of its own, and their scores with a whole split in registers,
// first as scores, then as weights. Of scores the rows of an instruction are tokens, of outputs
// channels; its columns are query vectors.
#ifndef QUIRE_CUDA_KERNELS_MMA_FOLDED_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_FOLDED_INL_H_

#include <algorithm>
#include <cstdint>

#include "attention/scalar.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_fold-inl.h"
#include "cuda/kernels/mma_reader-inl.h"
#include "cuda/kernels/mma_scores-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

template <class Thread, Staging kStaging>
class MmaFolded {
 public:
  QUIRE_KERNEL MmaFolded(Thread& self, const MmaArgs& mma)
      : self_(self), warp_(self), mma_(mma), shape_(mma.splits.shape), scores_(self, mma) {}

  QUIRE_KERNEL void Run() {
    reader().Open();
    const SplitsArgs& args = mma_.splits;
    MmaFold<Thread> fold(warp_, mma_, mma_.shared, self_.shared(), self_.block());
    for (uint32_t number = self_.block(); number < args.tile_count; number += mma_.blocks) {
      reader().FindTile(number);
      const Tile& tile = reader().tile();
      scores_.LoadQueries();
      for (uint32_t i = 0; i < kLanes; ++i) {
        const uint32_t lane = LaneOfLeaf(i);
        fold.Clear();
        uint64_t split = tile.split_begin + (lane - tile.split_begin) % kLanes;
        for (; split < tile.split_end; split += kLanes) {
          reader().StartSplit(split);
          if (reader().NeedsNothing()) continue;
          scores_.Find();
          max_ = scores_.Largest();
          Weigh();
          SumValues();
          fold.Add(max_, sum_, out_);
        }
        fold.Join(i);
      }
      fold.Finish(tile, args.rows);
    }
  }

 private:
  static constexpr uint32_t kTiles = kQueryTilesMax;
  using Scores = MmaScores<Thread, /*kFolds=*/true, kStaging, kTiles>;
  using Reader = typename Scores::Reader;
  static constexpr bool kEncoded = Reader::kEncoded;
  static constexpr uint32_t kStages = Scores::kStages;
  static constexpr uint32_t kQueries = Scores::kQueries;
  static constexpr uint32_t kSteps = Scores::kSteps;
  static constexpr uint32_t kOfStage = Scores::kOfStage;
  static constexpr uint32_t kSums = kMmaChannels / kMmaStep * kTiles * 4;  // of a lane

  // No member: a reference to a part of this would keep all of it in memory.
  QUIRE_KERNEL Reader& reader() { return scores_.reader(); }

  // Sums of a lane: [step of sixteen channels][tile][channel / 8 % 2][query % 2].
  QUIRE_KERNEL static constexpr uint32_t SumAt(uint32_t step, uint32_t tile) {
    return (step * kTiles + tile) * 4;
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
      for (uint32_t i = 0; i < Scores::kCount; ++i) {
        const uint32_t r = Scores::QueryOf(i);
        const uint32_t partial = r * 2 + i / 2 % 2;
        float weight = attention::Exp(scores_.At(lane, i) - max[r]);
        sums(lane, partial) += weight;
        if (reader().ValueEncodes()) {
          const uint32_t t = scores_.TokenOf(lane, i);
          if (reader().all_sealed() || !reader().IsOpen(scores_.NumberOf(lane, r), t)) {
            if (mma_.value_mids) {
              mids(lane, partial) = Fma(weight, reader().Scales(3)[t], mids(lane, partial));
            }
            weight = weight * reader().Scales(2)[t];
          }
        }
        scores_.At(lane, i) = weight;
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

  QUIRE_KERNEL void SumValues() {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) out_(lane, i) = 0.0f;
    });
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t form = 0; form < 2; ++form) {
      const bool open = form != 0;
      if (reader().NeedsAny(Reader::ValueKind(0, open))) AddValues(open);
    }
    if (!kEncoded || !mma_.value_mids) return;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i)
        out_(lane, i) += mid_sum_(lane, i % (kTiles * 4) / 4 * 2 + i % 2);
    });
  }

  QUIRE_KERNEL void AddValues(bool open) {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t number = Reader::StageOf(Reader::ValueKind(0, open), j);
      if (!reader().IsNeeded(number)) continue;
      const uint16_t* const values = reader().template EnterStage<false>(number);
      With16(TypeOfValues(shape_, open),
             [&](auto type) { MultiplyValues<type.value>(values, j, open); });
    }
  }

  /// Weights of a stage as second factors, [step][tile][token / 8 % 2].
  using Factors = Fragment<uint32_t, kOfStage / 2>;

  template <Codec kType>
  QUIRE_KERNEL void MultiplyValues(const uint16_t* values, uint32_t j, bool open) {
    Factors high;
    Factors low;
    SplitWeights<kType>(j, open, high, low);
    QUIRE_DEVICE_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t m = 0; m < kMmaChannels / kMmaStep; ++m) {
        if (m * kMmaStep >= shape_.value.dim) continue;
        const auto rows = LoadMatrices<true>(
            [&](uint32_t lane) { return values + reader().buffers().ValuesAt(lane, step, m); });
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
    WithConstant<kStages>(j, [&](auto stage) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kOfStage; i += 2) {
          const uint32_t at = stage.value * kOfStage + i;
          const HighLow both = Split16<kType>(scores_.At(lane, at), scores_.At(lane, at + 1));
          high(lane, i / 2) = both.high;
          low(lane, i / 2) = both.low;
        }
      });
    });
    if (!reader().all_sealed()) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kOfStage; ++i) {
          const uint32_t t = scores_.TokenOf(lane, j * kOfStage + i);
          if (reader().IsOpen(scores_.NumberOf(lane, Scores::QueryOf(i)), t) == open) continue;
          const uint32_t other_half = i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
          high(lane, i / 2) &= other_half;
          low(lane, i / 2) &= other_half;
        }
      });
    }
    high = Transposed(high);
    low = Transposed(low);
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MmaArgs& mma_;
  const AttentionShape& shape_;
  Scores scores_;  // then weights

  Fragment<float, kQueries> max_;
  Fragment<float, kQueries> sum_;
  Fragment<float, kQueries> mid_sum_;
  Fragment<float, kSums> out_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_FOLDED_INL_H_

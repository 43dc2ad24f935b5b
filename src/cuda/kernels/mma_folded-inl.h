// The kernel of the class mma16 whose blocks go through all splits of a tile (cuda/kernels/
// mma_attend.h), in the order of docs/numerics.md section 5.
//
// A warp has sixteen query vectors of its own, the rows of its instructions, whose columns are
// tokens while scores are computed, then channels. So what a lane has as scores is what it has of
// the first factor when they are weights: nothing moves between lanes. A whole split's are in
// registers, as the weights of any depend on the largest score of all.
#ifndef QUIRE_CUDA_KERNELS_MMA_FOLDED_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_FOLDED_INL_H_

#include <cstdint>

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
    Fold fold(self_, mma_);
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
      fold.Finish(tile);
    }
  }

 private:
  using Scores = MmaScores<Thread, /*kFolds=*/true, kStaging, kQueryTilesMax>;
  using Reader = typename Scores::Reader;
  using Fold = MmaFold<Thread>;
  static_assert(!Reader::kEncoded);
  static constexpr uint32_t kStages = Scores::kStages;
  static constexpr uint32_t kQueries = Scores::kQueries;
  static constexpr uint32_t kSteps = Scores::kSteps;
  static constexpr uint32_t kOfStep = Scores::kOfStep;
  /// Of a lane's query vector: [token / 8 % 2][token % 2], of the lane's tokens.
  static constexpr uint32_t kSumsOf = 4;

  // No member: a reference to a part of this would keep all of it in memory.
  QUIRE_KERNEL Reader& reader() { return scores_.reader(); }

  /// Scores become weights.
  QUIRE_KERNEL void Weigh() {
    Fragment<float, kQueries * kSumsOf> sums;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kQueries * kSumsOf; ++i) sums(lane, i) = 0.0f;
      float max[kQueries];  // finite, so that what is not seen has the weight 0
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        max[r] = max_(lane, r) == kNothingSeen ? 0.0f : max_(lane, r);
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < Scores::kCount; ++i) {
        const uint32_t r = Scores::QueryOf(i);
        const uint32_t partial = r * kSumsOf + i / 4 % 2 * 2 + i % 2;
        const float weight = ExpOfWeight(scores_.At(lane, i) - max[r]);
        sums(lane, partial) += weight;
        scores_.At(lane, i) = weight;
      }
    });
    sum_ = Tree(sums);
  }

  /// docs/numerics.md, Tree16: what is eight, four, two tokens apart, then neighbours.
  QUIRE_KERNEL Fragment<float, kQueries> Tree(const Fragment<float, kQueries * kSumsOf>& partials) {
    Fragment<float, kQueries * 2> sums;  // [query][token % 2]
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kQueries * 2; ++i) {
        const uint32_t at = i / 2 * kSumsOf + i % 2;
        sums(lane, i) = partials(lane, at) + partials(lane, at + 2);
      }
    });
    for (uint32_t mask = 2; mask > 0; mask /= 2) {
      const auto other = warp_.Exchanged(sums, mask);
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kQueries * 2; ++i) sums(lane, i) += other(lane, i);
      });
    }
    Fragment<float, kQueries> sum;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r)
        sum(lane, r) = sums(lane, r * 2) + sums(lane, r * 2 + 1);
    });
    return sum;
  }

  // Values.

  QUIRE_KERNEL void SumValues() {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < Fold::kSums; ++i) out_(lane, i) = 0.0f;
    });
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t form = 0; form < 2; ++form) {
      const bool open = form != 0;
      if (reader().NeedsAny(Reader::ValueKind(0, open))) AddValues(open);
    }
  }

  QUIRE_KERNEL void AddValues(bool open) {
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t j = 0; j < kStages; ++j) {
      const uint32_t number = Reader::StageOf(Reader::ValueKind(0, open), j);
      if (!reader().IsNeeded(number)) continue;
      const uint16_t* const values = reader().template EnterStage<false>(number);
      With16(TypeOfValues(shape_, open), [&](auto type) {
        QUIRE_DEVICE_UNROLL_BY(1)
        for (uint32_t step = 0; step < kSteps; ++step) {
          MultiplyValues<type.value>(values, step, j * kSteps + step, open);
        }
      });
    }
  }

  /// The weights of sixteen tokens as first factors.
  struct Weights {
    Fragment<uint32_t, 4> high;
    Fragment<uint32_t, 4> low;
  };

  /// Sixteen tokens: step `step` of a stage, `of_split` of the split.
  template <Codec kType>
  QUIRE_KERNEL void MultiplyValues(const uint16_t* values, uint32_t step, uint32_t of_split,
                                   bool open) {
    const Weights weights = SplitWeights<kType>(of_split, open);
    const uint32_t channels = shape_.value.dim;
    if (channels == kMmaChannels) {  // all that registers are for: nothing is asked as it goes
      return MultiplyChannels<kType>(values, step, kMmaChannels, weights);
    }
    MultiplyChannels<kType>(values, step, channels, weights);
  }
  template <Codec kType>
  QUIRE_KERNEL void MultiplyChannels(const uint16_t* values, uint32_t step, uint32_t channels,
                                     const Weights& weights) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t m = 0; m < kMmaChannels / kMmaStep; ++m) {
      if (m * kMmaStep >= channels) continue;
      const auto rows = LoadMatrices<true>(
          [&](uint32_t lane) { return values + reader().buffers().ValuesAt(lane, step, m); });
      QUIRE_DEVICE_UNROLL
      for (const auto* half : {&weights.high, &weights.low}) {
        MultiplyAdd<kType>(out_, m * 8, *half, rows, 0);
        MultiplyAdd<kType>(out_, m * 8 + 4, *half, rows, 2);
      }
    }
  }

  /// Those that are read in this form; others are zeros.
  template <Codec kType>
  QUIRE_KERNEL Weights SplitWeights(uint32_t of_split, bool open) {
    Weights weights;
    WithConstant<kSplitTokens / kMmaStep>(of_split, [&](auto step) {
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kOfStep / 2; ++i) {
          const uint32_t at = step.value * kOfStep + i * 2;
          const HighLow both = Split16<kType>(scores_.At(lane, at), scores_.At(lane, at + 1));
          weights.high(lane, i) = both.high;
          weights.low(lane, i) = both.low;
        }
      });
    });
    if (reader().all_sealed()) return weights;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfStep; ++i) {
        const uint32_t t = scores_.TokenOf(lane, of_split * kOfStep + i);
        const uint32_t q = scores_.NumberOf(lane, Scores::QueryOf(i));
        const uint32_t kept = HalfOrAll(i % 2, reader().IsOpen(q, t) == open);
        weights.high(lane, i / 2) &= kept;
        weights.low(lane, i / 2) &= kept;
      }
    });
    return weights;
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MmaArgs& mma_;
  const AttentionShape& shape_;
  Scores scores_;  // then weights

  Fragment<float, kQueries> max_;
  Fragment<float, kQueries> sum_;
  Fragment<float, Fold::kSums> out_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_FOLDED_INL_H_

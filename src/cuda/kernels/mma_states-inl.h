// The kernel of the class mma16 whose blocks leave states of splits (cuda/kernels/mma_attend.h), in
// the order of docs/numerics.md section 5.
//
// All warps of a block have the same query vectors. Each has the scores of a quarter of the tokens;
// they tell each other maxima and weights in shared memory; then each has the sums of a quarter of
// the channels. So a split is computed by 128 threads, whatever its query vectors are.
#ifndef QUIRE_CUDA_KERNELS_MMA_STATES_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_STATES_INL_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "attention/scalar.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_coded-inl.h"
#include "cuda/kernels/mma_integers-inl.h"
#include "cuda/kernels/mma_reader-inl.h"
#include "cuda/kernels/mma_scores-inl.h"
#include "cuda/kernels/mma_tile_merge-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// kTiles: of kMmaColumns query vectors.
template <class Thread, Staging kStaging, uint32_t kTiles>
class MmaStates {
 public:
  QUIRE_KERNEL MmaStates(Thread& self, const MmaArgs& mma)
      : self_(self),
        warp_(self),
        mma_(mma),
        shape_(mma.splits.shape),
        told_(reinterpret_cast<float*>(self.shared() + mma.shared.shared_out_at)),
        scores_(self, mma) {}

  QUIRE_KERNEL void Run() {
    reader().Open();
    const BlockWork work = mma_.splits.work[self_.block()];
    reader().FindTile(work.tile);
    const Tile& tile = reader().tile();
    const uint32_t step = tile.by_lanes ? kLanes : 1;
    const uint64_t end = tile.by_lanes
                             ? tile.split_end
                             : std::min(work.split + mma_.splits.splits_per_block, tile.split_end);
    reader().StartSplit(work.split);
    scores_.LoadQueries();  // while the first tokens are on their way
    for (uint64_t split = work.split;;) {
      scores_.Find();
      Weigh();
      const uint64_t state = (tile.by_lanes ? work.split : split) - tile.split_begin;
      const bool is_last = split + step >= end;
      for (uint32_t group = 0; group * kMmaChannels < shape_.value.dim; ++group) {
        SumValues(group);
        TakeSums();
        if (tile.by_lanes) Fold(split == work.split);
        if (!tile.by_lanes || is_last) Leave(tile.states_begin + state * tile.queries(), group);
      }
      if (is_last) break;
      split += step;
      reader().StartSplit(split);
    }
    if (!tile.merges) return;
    static_assert(TileMerge::kSharedFloats * kMmaWarps * 4 <= SharedOutBytes(kOfBlock));
    if (!self_.IsLast(mma_.splits.arrived + work.tile, tile.blocks(mma_.splits.splits_per_block))) {
      return;
    }
    TileMerge(self_, mma_.splits, tile, told_).Run();
  }

 private:
  using Scores = MmaScores<Thread, /*kFolds=*/false, kStaging, kTiles>;
  using Reader = typename Scores::Reader;
  using TileMerge = MmaTileMerge<Thread>;
  static constexpr bool kEncoded = Reader::kEncoded;
  static constexpr uint32_t kStages = Scores::kStages;
  static constexpr uint32_t kQueries = Scores::kQueries;
  static constexpr uint32_t kOfBlock = kTiles * kMmaColumns;
  static constexpr uint32_t kStepsOfStage = Reader::kTokens / kMmaStep;
  /// Of sixteen channels, that a warp has of a group.
  static constexpr uint32_t kSteps = kMmaChannels / kMmaStep / kMmaWarps;
  static constexpr uint32_t kSums = kSteps * kTiles * 4;  // of a lane

  // No member: a reference to a part of this would keep all of it in memory.
  QUIRE_KERNEL Reader& reader() { return scores_.reader(); }

  // Sums of a lane: [step of sixteen channels][tile][channel / 8 % 2][query % 2].
  QUIRE_KERNEL static constexpr uint32_t SumAt(uint32_t step, uint32_t tile) {
    return (step * kTiles + tile) * 4;
  }

  /// Channel `i` of a lane's, eight apart, of its query vector r.
  QUIRE_KERNEL static constexpr uint32_t SumOfChannel(uint32_t i, uint32_t r) {
    return SumAt(i / 2, r / 2) + i % 2 * 2 + r % 2;
  }

  // What warps tell each other.

  QUIRE_KERNEL float& MaxOf(uint32_t warp, uint32_t q) const { return told_[warp * kOfBlock + q]; }
  QUIRE_KERNEL float& SumOf(uint32_t q) const { return told_[kMmaWarps * kOfBlock + q]; }
  QUIRE_KERNEL float& MidSumOf(uint32_t q) const { return told_[(kMmaWarps + 1) * kOfBlock + q]; }
  QUIRE_KERNEL float* Told() const { return told_ + WeightsAt(kOfBlock) / 4; }
  QUIRE_KERNEL float& WeightOf(uint32_t q, uint32_t t) const {
    return Told()[q * kWeightStride + t];
  }
  /// Sixteen bytes of a lane: high and low parts of weights of sixteen tokens, or weights of a few
  /// tokens as floats, or as bytes.
  struct alignas(16) Words {
    uint32_t word[4];
  };
  QUIRE_KERNEL Words& FactorsOf(uint32_t step, uint32_t tile, uint32_t lane) const {
    return reinterpret_cast<Words*>(Told())[(step * kTiles + tile) * kWarpLanes + lane];
  }

  /// Scores become weights, of V's codes times their scales.
  QUIRE_KERNEL void Weigh() {
    max_ = scores_.Largest();
    warp_.Lanes([&](uint32_t lane) {
      if (lane / 4 != 0) return;
      for (uint32_t r = 0; r < kQueries; ++r) {
        MaxOf(warp_.number(), scores_.NumberOf(lane, r)) = max_(lane, r);
      }
    });
    self_.Sync();
    warp_.Lanes([&](uint32_t lane) {
      float base[kQueries];  // finite, so that what is not seen has the weight 0
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        const uint32_t q = scores_.NumberOf(lane, r);
        max_(lane, r) = MaxOf(0, q);
        for (uint32_t w = 1; w < kMmaWarps; ++w) max_(lane, r) = Max(max_(lane, r), MaxOf(w, q));
        base[r] = max_(lane, r) == kNothingSeen ? 0.0f : max_(lane, r);
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < Scores::kCount; ++i) {
        const uint32_t r = Scores::QueryOf(i);
        const uint32_t q = scores_.NumberOf(lane, r);
        const uint32_t t = scores_.TokenOf(lane, i);
        const float weight = ExpOfWeight(scores_.At(lane, i) - base[r]);
        WeightOf(q, t) = weight;
        scores_.At(lane, i) =
            reader().ValueEncodes() && IsSealed(q, t) ? weight * reader().ValueScales()[t] : weight;
      }
    });
    self_.Sync();
    AddWeights();
  }
  QUIRE_KERNEL bool IsSealed(uint32_t q, uint32_t t) {
    return reader().all_sealed() || !reader().IsOpen(q, t);
  }

  /// A lane has one of the sixteen partial sums of a query vector of each tile (docs/numerics.md,
  /// StridedSum and Tree16).
  QUIRE_KERNEL void AddWeights() {
    const bool mids = kEncoded && mma_.value_mids;
    Fragment<float, kTiles * 2> sums;  // [weights, mids][tile]
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTiles; ++n) {
        const uint32_t q = n * kMmaColumns + warp_.number() * 2 + lane / kPartials;
        float sum = 0.0f;
        float mid = 0.0f;
        QUIRE_DEVICE_UNROLL_BY(8)
        for (uint32_t t = lane % kPartials; t < kSplitTokens; t += kPartials) {
          const float weight = WeightOf(q, t);
          sum += weight;
          if (mids && IsSealed(q, t)) mid = Fma(weight, reader().ValueMids()[t], mid);
        }
        sums(lane, n) = sum;
        sums(lane, kTiles + n) = mid;
      }
    });
    for (uint32_t mask = kPartials / 2; mask > 0; mask /= 2) {
      const auto other = warp_.Exchanged(sums, mask);
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kTiles * 2; ++i) sums(lane, i) += other(lane, i);
      });
    }
    warp_.Lanes([&](uint32_t lane) {
      if (lane % kPartials != 0) return;
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTiles; ++n) {
        const uint32_t q = n * kMmaColumns + warp_.number() * 2 + lane / kPartials;
        SumOf(q) = sums(lane, n);
        MidSumOf(q) = sums(lane, kTiles + n);
      }
    });
  }

  // Values.

  QUIRE_KERNEL void SumValues(uint32_t group) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) out_(lane, i) = 0.0f;
    });
    if (reader().NeedsNothing()) self_.Sync();  // sums are told
    const uint32_t channels =
        std::min(shape_.value.dim - group * kMmaChannels, uint32_t{kMmaChannels});
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t form = 0; form < 2; ++form) {
      const bool open = form != 0;
      if (!reader().NeedsAny(Reader::ValueKind(group, open))) continue;
      self_.Sync();  // all warps have read what they were told there
      TellWeights(open);
      self_.Sync();
      QUIRE_DEVICE_UNROLL_BY(1)
      for (uint32_t j = 0; j < kStages; ++j) {
        const uint32_t number = Reader::StageOf(Reader::ValueKind(group, open), j);
        if (!reader().IsNeeded(number)) continue;
        AddStage(reader().template EnterStage<false>(number), j, channels, open);
      }
    }
    if (!kEncoded || !mma_.value_mids) return;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) {
        out_(lane, i) += MidSumOf(scores_.NumberOf(lane, Scores::QueryOf(i)));
      }
    });
  }

  QUIRE_KERNEL void TellWeights(bool open) {
    if constexpr (kEncoded) {
      if (!open && HasIntegers()) return TellIntegers();
    }
    With16(TypeOfValues(shape_, open), [&](auto type) { TellFactors<type.value>(open); });
  }

  /// Whether codes of V stand for integers.
  QUIRE_KERNEL bool HasIntegers() const { return kEncoded && IsInteger(shape_.value.codec); }
  QUIRE_KERNEL void AddStage(const uint16_t* values, uint32_t j, uint32_t channels, bool open) {
    if constexpr (kEncoded) {
      const Codec codec = shape_.value.codec;
      if (!open && IsInteger(codec)) {
        return WithIntegers(
            codec, [&](auto format) { AddIntegers<decltype(format)>(values, j, channels); });
      }
      if (!open && codec > Codec::kBf16) {
        return WithFloats(codec, [&](auto format) {
          AddNumbers<decltype(format), Codec::kBf16>(values, j, channels);
        });
      }
    }
    With16(TypeOfValues(shape_, open),
           [&](auto type) { AddNumbers<Numbers16, type.value>(values, j, channels); });
  }

  /// Weights that are read in this form; others are zeros.
  template <Codec kType>
  QUIRE_KERNEL void TellFactors(bool open) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t first = 0; first < Scores::kCount; first += 4) {  // of a step and tile
      Fragment<uint32_t, 4> words;                                  // high, high, low, low
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t at = first + i * 2;
          const HighLow both = Split16<kType>(scores_.At(lane, at), scores_.At(lane, at + 1));
          words(lane, i) = both.high;
          words(lane, 2 + i) = both.low;
        }
        if (reader().all_sealed()) return;
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t at = first + i;
          const uint32_t q = scores_.NumberOf(lane, Scores::QueryOf(at));
          const uint32_t kept =
              HalfOrAll(i % 2, reader().IsOpen(q, scores_.TokenOf(lane, at)) == open);
          words(lane, i / 2) &= kept;
          words(lane, 2 + i / 2) &= kept;
        }
      });
      words = Transposed(words);
      warp_.Lanes([&](uint32_t lane) {
        FactorsOf(scores_.StepOf(first), first / 4 % kTiles,
                  lane) = {{words(lane, 0), words(lane, 1), words(lane, 2), words(lane, 3)}};
      });
    }
  }

  template <class Format, Codec kType>
  QUIRE_KERNEL void AddNumbers(const uint16_t* values, uint32_t j, uint32_t channels) {
    QUIRE_DEVICE_UNROLL
    for (uint32_t t = 0; t < kStepsOfStage; ++t) {
      Fragment<uint32_t, 4> factors[kTiles];
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTiles; ++n) {
        warp_.Lanes([&](uint32_t lane) {
          const Words words = FactorsOf(j * kStepsOfStage + t, n, lane);
          for (uint32_t i = 0; i < 4; ++i) factors[n](lane, i) = words.word[i];
        });
      }
      QUIRE_DEVICE_UNROLL
      for (uint32_t m = 0; m < kSteps; ++m) {
        const uint32_t step = warp_.number() * kSteps + m;
        if (step * kMmaStep >= channels) continue;
        const auto rows = LoadChannels<Format, kType>(values, t, step, channels);
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kTiles; ++n) {
          MultiplyAdd<kType>(out_, SumAt(m, n), rows, factors[n], 0);
          MultiplyAdd<kType>(out_, SumAt(m, n), rows, factors[n], 2);
        }
      }
    }
  }

  /// Sixteen channels, of as many tokens.
  template <class Format, Codec kType>
  QUIRE_KERNEL Fragment<uint32_t, 4> LoadChannels(const uint16_t* values, uint32_t t, uint32_t step,
                                                  uint32_t channels) {
    if constexpr (std::is_same_v<Format, Numbers16>) {
      return LoadMatrices<true>(
          [&](uint32_t lane) { return values + reader().buffers().ValuesAt(lane, t, step); });
    } else {
      const uint32_t at = t * ColumnBytes(shape_.value.codec, channels) + step * kMmaStep;
      return LoadCodes<Format, kType>(warp_, reinterpret_cast<const std::byte*>(values) + at,
                                      channels);
    }
  }

  // Values whose codes stand for integers. A stage is a group of tokens whose weights share a unit
  // (docs/numerics.md section 2).
  static_assert(Reader::kTokens == attention::kGroupTokens || kStaging != Staging::kCodes);

  /// Weights of a query vector as bytes of numbers of sixteen bits, high ones, then low ones: they
  /// take the place of its row of floats.
  QUIRE_KERNEL std::byte* WeightBytesOf(uint32_t q, bool low) const {
    return reinterpret_cast<std::byte*>(&WeightOf(q, 0)) + (low ? kSplitTokens : 0u);
  }
  QUIRE_KERNEL float& WeightUnitOf(uint32_t group, uint32_t q) const {
    auto* const units = reinterpret_cast<float*>(self_.shared() + mma_.shared.weight_units_at);
    return units[group * kOfBlock + q];
  }

  /// Weights of sealed tokens; others are zeros.
  QUIRE_KERNEL void TellIntegers() {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < Scores::kCount; ++i) {
        const uint32_t q = scores_.NumberOf(lane, Scores::QueryOf(i));
        const uint32_t t = scores_.TokenOf(lane, i);
        WeightOf(q, t) = IsSealed(q, t) ? scores_.At(lane, i) : 0.0f;
      }
    });
    self_.Sync();
    QUIRE_DEVICE_UNROLL
    for (uint32_t n = 0; n < kTiles; ++n) FixWeights(n);
  }
  /// Those of two query vectors of a tile by each warp: a lane has sixteen tokens of one.
  QUIRE_KERNEL void FixWeights(uint32_t tile) {
    constexpr uint32_t kOfLane = kSplitTokens / 16;
    const auto query_of = [&](uint32_t lane) {
      return tile * kMmaColumns + warp_.number() * 2 + lane / 16;
    };
    Fragment<float, kOfLane> weights;
    Fragment<uint32_t, 1> largest;  // of the lane, then of the group, which four lanes have
    warp_.Lanes([&](uint32_t lane) {
      const auto* const from =
          reinterpret_cast<const Words*>(&WeightOf(query_of(lane), lane % 16 * kOfLane));
      largest(lane, 0) = 0;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfLane; ++i) {
        weights(lane, i) = std::bit_cast<float>(from[i / 4].word[i % 4]);
        largest(lane, 0) = std::max(largest(lane, 0), attention::MagnitudeBits(weights(lane, i)));
      }
    });
    static_assert(4 * kOfLane == attention::kGroupTokens);
    for (uint32_t mask = 2; mask > 0; mask /= 2) {
      const auto other = warp_.Exchanged(largest, mask);
      warp_.Lanes(
          [&](uint32_t lane) { largest(lane, 0) = std::max(largest(lane, 0), other(lane, 0)); });
    }
    warp_.Sync();  // all lanes have read the floats
    warp_.Lanes([&](uint32_t lane) {
      const uint32_t q = query_of(lane);
      const attention::FixedScale scale = attention::FixedScaleOf(largest(lane, 0));
      if (lane % 4 == 0) WeightUnitOf(lane % 16 / 4, q) = scale.unit;
      Words high;
      Words low;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kOfLane; i += 4) {
        int32_t numbers[4];
        QUIRE_DEVICE_UNROLL
        for (uint32_t x = 0; x < 4; ++x) numbers[x] = FixedOf(weights(lane, i + x), scale);
        const HighLowBytes both = BytesOf(numbers[0], numbers[1], numbers[2], numbers[3]);
        high.word[i / 4] = both.high;
        low.word[i / 4] = both.low;
      }
      reinterpret_cast<Words*>(WeightBytesOf(q, false))[lane % 16] = high;
      reinterpret_cast<Words*>(WeightBytesOf(q, true))[lane % 16] = low;
    });
  }

  template <class Format>
  QUIRE_KERNEL void AddIntegers(const uint16_t* values, uint32_t j, uint32_t channels) {
    constexpr float kUnit = 1.0f / Format::kDivisor;
    const uint32_t column = ColumnBytes(shape_.value.codec, channels);
    IntegerSums<Format, kSums> sums(warp_);
    QUIRE_DEVICE_UNROLL
    for (uint32_t t = 0; t < Reader::kTokens; t += kIntegerStep) {
      Fragment<uint32_t, 4> weights[kTiles];
      QUIRE_DEVICE_UNROLL
      for (uint32_t n = 0; n < kTiles; ++n) {
        weights[n] = LoadNumbers([&](uint32_t row, bool low) {
          return WeightBytesOf(n * kMmaColumns + row, low) + j * Reader::kTokens + t;
        });
      }
      const std::byte* const columns =
          reinterpret_cast<const std::byte*>(values) + t / kMmaStep * column;
      QUIRE_DEVICE_UNROLL
      for (uint32_t m = 0; m < kSteps; ++m) {
        const uint32_t step = warp_.number() * kSteps + m;
        if (step * kMmaStep >= channels) continue;
        const auto rows = LoadValueIntegers<Format>(warp_, columns, column, step);
        QUIRE_DEVICE_UNROLL
        for (uint32_t n = 0; n < kTiles; ++n) sums.Add(SumAt(m, n), rows, weights[n]);
      }
    }
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) {
        const float unit = WeightUnitOf(j, scores_.NumberOf(lane, Scores::QueryOf(i)));
        out_(lane, i) = Fma(sums.At(lane, i), unit * kUnit, out_(lane, i));
      }
    });
  }

  QUIRE_KERNEL void TakeSums() {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) sum_(lane, r) = SumOf(scores_.NumberOf(lane, r));
    });
  }

  /// The state becomes Merge(those of the lane before, this one). Not by merge-inl.h, with which
  /// more registers are spilled here.
  QUIRE_KERNEL void Fold(bool is_first) {
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        const float before = is_first ? kNothingSeen : folded_max_(lane, r);
        const float now = max_(lane, r);
        if (before == kNothingSeen) continue;
        const bool both = now != kNothingSeen;
        const float max = both ? Max(before, now) : before;
        const float first = attention::Exp(before - max);
        const float second = attention::Exp(now - max);
        max_(lane, r) = max;
        sum_(lane, r) =
            both ? Fma(folded_sum_(lane, r), first, sum_(lane, r) * second) : folded_sum_(lane, r);
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kSteps * 2; ++i) {
          const float folded = folded_out_(lane, SumOfChannel(i, r));
          float& out = out_(lane, SumOfChannel(i, r));
          out = both ? Fma(folded, first, out * second) : folded;
        }
      }
    });
    folded_max_ = max_;
    folded_sum_ = sum_;
    folded_out_ = out_;
  }

  /// The state of a split, with the sums of a group of channels.
  QUIRE_KERNEL void Leave(uint64_t states, uint32_t group) {
    const SplitStates& to = mma_.splits.states;
    warp_.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t r = 0; r < kQueries; ++r) {
        const uint32_t q = scores_.NumberOf(lane, r);
        if (q >= reader().tile().queries()) continue;
        if (group == 0 && warp_.number() == 0 && lane / 4 == 0) {
          to.max[states + q] = max_(lane, r);
          to.sum[states + q] = sum_(lane, r);
        }
        if (max_(lane, r) == kNothingSeen) continue;
        float* const out = to.out + (states + q) * shape_.value.dim;
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < kSteps * 2; ++i) {
          const uint32_t step = warp_.number() * kSteps + i / 2;
          const uint32_t channel = group * kMmaChannels + step * kMmaStep + i % 2 * 8 + lane / 4;
          if (channel >= shape_.value.dim) continue;
          out[channel] = out_(lane, SumOfChannel(i, r));
        }
      }
    });
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MmaArgs& mma_;
  const AttentionShape& shape_;
  float* const told_;
  Scores scores_;  // then weights

  Fragment<float, kQueries> max_;
  Fragment<float, kQueries> sum_;
  Fragment<float, kSums> out_;
  // Of the lane's splits so far.
  Fragment<float, kQueries> folded_max_;
  Fragment<float, kQueries> folded_sum_;
  Fragment<float, kSums> folded_out_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_STATES_INL_H_

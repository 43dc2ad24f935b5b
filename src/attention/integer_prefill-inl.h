// Many query vectors over integer codes: K and V of a split become panels of pairs of 16-bit
// numbers once (integer-inl.h), and every query vector of the tile uses them.
#include "attention/integer_decode-inl.h"
#include "attention/prefill-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_INTEGER_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_INTEGER_PREFILL_INL_H_
#undef QUIRE_ATTENTION_INTEGER_PREFILL_INL_H_
#else
#define QUIRE_ATTENTION_INTEGER_PREFILL_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Whole numbers themselves.
template <Codec kCodec>
HWY_INLINE void StoreSixteen(const PairVecOf<1>* pairs, int16_t* to) {
  const PairTagOf<1> d;
  const auto bias = hn::Set(d, int16_t{kBias<kCodec>});
  QUIRE_UNROLL
  for (int v = 0; v < kVecsPerStep; ++v) {
    const auto numbers = kStride<kCodec> == 2 ? hn::Add(pairs[v], pairs[v]) : pairs[v];
    hn::StoreU(hn::Sub(numbers, bias), d, to + v * kSixteenPairs / kVecsPerStep);
  }
}

/// One column of K to [pair of channels][16 tokens][2], as many pairs as the column's steps have.
template <Codec kCodec>
void ExpandIntegerKey(const std::byte* codes, size_t dim, int16_t* to) {
  constexpr size_t kPairs = kPairsPerStep<kCodec>;
  const auto expand = [&]<int kStep>() QUIRE_INLINE {
    PairVecOf<1> k[kPairs][kVecsPerStep];
    LoadPairs<kCodec, kStep, 1, false>(&codes, 0, k);
    QUIRE_UNROLL
    for (size_t p = 0; p < kPairs; ++p, to += kSixteenPairs) StoreSixteen<kCodec>(k[p], to);
  };
  if constexpr (kHasPairs<kCodec>) {
    for (size_t d = 0; d < dim; d += 2 * kPairs * kTileSteps<kCodec>) {
      Repeat<kTileSteps<kCodec>>(expand);
      codes += codec::kPairTileBytes;
    }
  } else {
    for (size_t d = 0; d < dim; d += 2 * kPairs, codes += codec::kStepBytes) {
      expand.template operator()<0>();
    }
  }
}

/// One column of V to its eight pairs of tokens of every panel [16 channels][2], panels
/// `panel_stride` apart.
template <Codec kCodec>
void ExpandIntegerValue(const std::byte* codes, size_t dim, int16_t* to, size_t panel_stride) {
  constexpr int kPanels = kValuesPerCode<kCodec>;
  for (size_t d = 0; d < dim; d += kPanels * kPanelDims, to += kPanels * panel_stride) {
    Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
      constexpr int kTokenPairs = kPairsPerStep<kCodec> / kPanels;
      PairVecOf<1> x[kPairsPerStep<kCodec>][kVecsPerStep];
      LoadPairs<kCodec, kStep, 1, false>(&codes, 0, x);
      QUIRE_UNROLL
      for (int p = 0; p < kTokenPairs; ++p) {
        int16_t* const pair = to + (kStep * kTokenPairs + p) * kSixteenPairs;
        StoreSixteen<kCodec>(x[p * kPanels], pair);
        if (kPanels > 1 && d + kPanelDims < dim) {
          StoreSixteen<kCodec>(x[p * kPanels + 1], pair + panel_stride);
        }
      }
    });
    codes += codec::TileBytes(kCodec, codec::kTileLanes);
  }
}

/// sum[r][v] = products of `pairs` pairs of left[r] with a panel's.
template <int kRows>
HWY_INLINE void SumProducts(const int16_t* left, size_t left_stride, const int16_t* panel,
                            size_t pairs, SumVec (*sum)[kVecsPerSixteen]) {
  constexpr int kVecs = static_cast<int>(kVecsPerSixteen);
  ClearSums<kRows, kVecs>(sum);
  for (size_t i = 0; i < pairs; ++i) {
    PairVec x[kVecs];
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      x[v] = hn::LoadU(PairTag(), panel + i * kSixteenPairs + v * 2 * kSumLanes);
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const PairVec factor = SetPair(left + r * left_stride + 2 * i);
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) sum[r][v] = AddProducts(factor, x[v], sum[r][v]);
    }
  }
}

/// scores[r][t] of kRows query vectors and one expanded column of K, without the scales.
template <int kRows>
void ScoreIntegerPanel(const FixedQueries& queries, const int16_t* panel, size_t pairs,
                       float* scores) {
  SumVec sum[kRows][kVecsPerSixteen];
  SumProducts<kRows>(queries.codes, queries.stride, panel, pairs, sum);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) StoreScores(sum[r], queries.units[r], scores + r * kSplitTokens);
}

/// out[r] += weights * values of kRows query vectors, one group of tokens and one panel of V, whose
/// pairs of tokens begin at `panel`.
template <int kRows>
void WeighIntegerPanel(const FixedWeights& weights, uint32_t group, const int16_t* panel,
                       float* out, size_t out_stride) {
  SumVec sum[kRows][kVecsPerSixteen];
  SumProducts<kRows>(weights.codes + size_t{group} * kGroupTokens, kSplitTokens, panel,
                     kGroupTokens / 2, sum);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    AddGroup(sum[r], weights.units[r * FixedWeights::kGroups + group], out + r * out_stride);
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

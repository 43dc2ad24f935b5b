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

/// Panels of a register tile, as many as its registers hold with the rows of a full one.
inline constexpr int kIntegerPanels = kVecsPerSixteen == 1 ? 2 : 1;

/// sum[r][p][v] = products of `pairs` pairs of row r with those of panel p, panels `panel_stride`
/// apart. Rows are kRowStep numbers apart, the pairs of one kPairStep.
template <int kRows, int kPanels, size_t kRowStep, size_t kPairStep>
HWY_INLINE void SumProducts(const int16_t* rows, const int16_t* panel, size_t panel_stride,
                            size_t pairs, SumVec (*sum)[kPanels][kVecsPerSixteen]) {
  constexpr int kVecs = static_cast<int>(kVecsPerSixteen);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) ClearSums<kPanels, kVecs>(sum[r]);
  for (size_t i = 0; i < pairs; ++i) {
    PairVec x[kPanels][kVecs];
    QUIRE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        x[p][v] =
            hn::LoadU(PairTag(), panel + p * panel_stride + i * kSixteenPairs + v * 2 * kSumLanes);
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const PairVec factor = SetPair(rows + r * kRowStep + i * kPairStep);
      QUIRE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) sum[r][p][v] = AddProducts(factor, x[p][v], sum[r][p][v]);
      }
    }
  }
}

/// scores[r][t] of kRows query vectors and kPanels neighbouring columns of K that are expanded,
/// without the scales.
template <int kRows, int kPanels>
void ScoreIntegerPanels(const FixedQueries& queries, const int16_t* panel, size_t panel_stride,
                        size_t pairs, float* scores) {
  SumVec sum[kRows][kPanels][kVecsPerSixteen];
  SumProducts<kRows, kPanels, 2, 2 * kRows>(queries.codes, panel, panel_stride, pairs, sum);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      StoreScores(sum[r][p], queries.units[r], scores + r * kSplitTokens + p * kColumnTokens);
    }
  }
}

/// out[r] += weights * values of kRows query vectors, one group of tokens and kPanels panels of V,
/// whose pairs of tokens begin at `panel`.
template <int kRows, int kPanels>
void WeighIntegerPanels(const FixedWeights& weights, uint32_t group, const int16_t* panel,
                        float* out, size_t out_stride) {
  SumVec sum[kRows][kPanels][kVecsPerSixteen];
  SumProducts<kRows, kPanels, kSplitTokens, 2>(weights.codes + size_t{group} * kGroupTokens, panel,
                                               kValuePairsStride, kGroupTokens / 2, sum);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float unit = weights.units[r * FixedWeights::kGroups + group];
    QUIRE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      AddGroup(sum[r][p], unit, out + r * out_stride + p * kPanelDims);
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

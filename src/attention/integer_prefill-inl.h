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

/// Column `column` of K to [pair of channels][16 tokens][2], as many pairs as its steps have.
template <Codec kCodec>
void ExpandIntegerKey(const std::byte* codes, size_t dim, uint32_t column, int16_t* panels) {
  int16_t* to = panels + size_t{column} * KeyPairsStride(static_cast<uint32_t>(dim));
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

/// Column `column` of V to its eight pairs of tokens of every panel [16 channels][2].
template <Codec kCodec>
void ExpandIntegerValue(const std::byte* codes, size_t dim, uint32_t column, int16_t* panels) {
  constexpr int kPanels = kValuesPerCode<kCodec>;
  int16_t* to = panels + size_t{column} * kColumnTokens * kPanelDims;
  for (size_t d = 0; d < dim; d += kPanels * kPanelDims, to += kPanels * kValuePairsStride) {
    Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
      constexpr int kTokenPairs = kPairsPerStep<kCodec> / kPanels;
      PairVecOf<1> x[kPairsPerStep<kCodec>][kVecsPerStep];
      LoadPairs<kCodec, kStep, 1, false>(&codes, 0, x);
      QUIRE_UNROLL
      for (int p = 0; p < kTokenPairs; ++p) {
        int16_t* const pair = to + (kStep * kTokenPairs + p) * kSixteenPairs;
        StoreSixteen<kCodec>(x[p * kPanels], pair);
        if (kPanels > 1 && d + kPanelDims < dim) {
          StoreSixteen<kCodec>(x[p * kPanels + 1], pair + kValuePairsStride);
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

/// Scores of the query vectors of a register tile against the columns that are expanded, without
/// the scales.
inline void ScoreIntegerTile(const FixedQueries& queries, uint32_t rows, const int16_t* panels,
                             size_t dim, const Columns& columns, float* scores, AmxTiles*) {
  const size_t pairs = DivUp(dim, 2);
  const size_t stride = KeyPairsStride(static_cast<uint32_t>(dim));
  for (uint32_t c = 0; c < columns.count;) {
    const uint32_t index = columns.index[c];
    const bool whole = c + kIntegerPanels <= columns.count &&
                       columns.index[c + kIntegerPanels - 1] == index + kIntegerPanels - 1;
    ForTileRows(rows, [&]<int kRows>() HWY_ATTR {
      const auto score =
          whole ? ScoreIntegerPanels<kRows, kIntegerPanels> : ScoreIntegerPanels<kRows, 1>;
      score(queries, panels + index * stride, stride, pairs, scores + index * kColumnTokens);
    });
    c += whole ? kIntegerPanels : 1;
  }
}

/// out += weights * values of the query vectors of a register tile, groups of tokens
/// [first_group, groups_end) and all panels of V.
inline void WeighIntegerTile(const FixedWeights& weights, uint32_t rows, const int16_t* panels,
                             uint32_t panel_count, uint32_t first_group, uint32_t groups_end,
                             float* out, size_t out_stride, AmxTiles*) {
  for (uint32_t panel = 0; panel < panel_count;) {
    const bool whole = panel + kIntegerPanels <= panel_count;
    for (uint32_t g = first_group; g < groups_end; ++g) {
      const int16_t* pairs =
          panels + size_t{panel} * kValuePairsStride + size_t{g} * kGroupTokens * kPanelDims;
      ForTileRows(rows, [&]<int kRows>() HWY_ATTR {
        const auto weigh =
            whole ? WeighIntegerPanels<kRows, kIntegerPanels> : WeighIntegerPanels<kRows, 1>;
        weigh(weights, g, pairs, out + size_t{panel} * kPanelDims, out_stride);
      });
    }
    panel += whole ? kIntegerPanels : 1;
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

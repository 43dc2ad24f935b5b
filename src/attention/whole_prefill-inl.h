// Many query vectors over whole-number codes: K and V of a split become panels of pairs of 16-bit
// numbers once (whole-inl.h), and every query vector of the tile uses them.
#include "attention/prefill-inl.h"
#include "attention/whole_decode-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_WHOLE_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_WHOLE_PREFILL_INL_H_
#undef QUIRE_ATTENTION_WHOLE_PREFILL_INL_H_
#else
#define QUIRE_ATTENTION_WHOLE_PREFILL_INL_H_
#endif

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// One column of K to [pair of channels][16 tokens][2].
template <Codec kCodec>
void ExpandWholeKey(WholeColumn column, int16_t* to) {
  while (column.pairs != 0) {
    const size_t pairs = std::min(kPairsPerStep<kCodec>, column.pairs);
    PairVec k[kPairsPerStep<kCodec>][kVecsPerSixteen];
    LoadKeys<kCodec>(column, k);
    for (size_t p = 0; p < pairs; ++p, to += kSixteenPairs) {
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecsPerSixteen; ++v) {
        hn::StoreU(k[p][v], PairTag(), to + v * 2 * kSumLanes);
      }
    }
    if (pairs == column.pairs) break;
    NextStep<kCodec>(&column);
  }
}

/// One column of V to its eight pairs of tokens of every panel [16 channels][2], panels
/// `panel_stride` apart.
template <Codec kCodec>
void ExpandWholeValue(const WholeRows& rows, const StreamLayout& layout, int16_t* to,
                      size_t panel_stride) {
  constexpr size_t kPanels = kChannelsPerLoad<kCodec> / kPanelDims;
  const size_t loadable = LoadableChannels<kCodec>(layout.dim);
  size_t d = 0;
  for (size_t load = 0; d < loadable; ++load, d += kChannelsPerLoad<kCodec>) {
    for (size_t r = 0; r < kColumnTokens / 2; ++r) {
      PairVec x[kVecsPerLoad<kCodec>];
      LoadValues<kCodec>(rows.codes + r * rows.row_bytes + load * kBytesPerLoad<kCodec>,
                         rows.signs + 2 * r * rows.sign_bytes + load * 2, rows.sign_bytes, x);
      QUIRE_UNROLL
      for (size_t v = 0; v < kPanels * kVecsPerSixteen; ++v) {
        hn::StoreU(x[v], PairTag(),
                   to + v / kVecsPerSixteen * panel_stride + r * kSixteenPairs +
                       v % kVecsPerSixteen * 2 * kSumLanes);
      }
    }
    to += kPanels * panel_stride;
  }
  for (; d < layout.dim; d += kPanelDims, to += panel_stride) {
    for (size_t r = 0; r < kColumnTokens / 2; ++r) {
      StoreLastValues(layout, rows, r, d, to + r * kSixteenPairs);
    }
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
void ScoreWholePanel(const FixedQueries& queries, const int16_t* panel, size_t pairs,
                     float* scores) {
  SumVec sum[kRows][kVecsPerSixteen];
  SumProducts<kRows>(queries.codes, queries.stride, panel, pairs, sum);
  StoreScores<kRows>(sum, queries.units, scores);
}

/// out[r] += weights * values of kRows query vectors, one group of tokens and one panel of V, whose
/// pairs of tokens begin at `panel`.
template <int kRows>
void WeighWholePanel(const FixedWeights& weights, uint32_t group, const int16_t* panel, float* out,
                     size_t out_stride) {
  SumVec sum[kRows][kVecsPerSixteen];
  SumProducts<kRows>(weights.codes + size_t{group} * kGroupTokens, kSplitTokens, panel,
                     kGroupTokens / 2, sum);
  AddGroup<kRows, static_cast<int>(kVecsPerSixteen)>(sum, weights, group, out, out_stride);
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

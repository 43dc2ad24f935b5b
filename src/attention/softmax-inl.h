// From scores to weights, and the merging of softmax states (docs/numerics.md section 2, steps
// 3-7).
#include "attention/math-inl.h"
#include "attention/shape.h"
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_SOFTMAX_INL_H_
#undef QUIRE_ATTENTION_SOFTMAX_INL_H_
#else
#define QUIRE_ATTENTION_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

inline constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

/// Which of the lanes [first, first + Lanes) of a split are visible.
HWY_INLINE hn::Mask<Tag> VisibleLanes(const VisibleTokens& visible, uint32_t first) {
  const Tag d;
  const auto token = hn::Iota(d, static_cast<float>(first));
  auto mask = hn::Lt(hn::Zero(d), hn::Zero(d));
  for (uint32_t r = 0; r < visible.count; ++r) {
    const auto begin = hn::Set(d, static_cast<float>(visible.ranges[r].begin));
    const auto end = hn::Set(d, static_cast<float>(visible.ranges[r].end));
    mask = hn::Or(mask, hn::And(hn::Ge(token, begin), hn::Lt(token, end)));
  }
  return mask;
}

/// Lane j plus lane j + half of them, until one is left.
template <class D>
HWY_INLINE float SumByFolding(D d, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(x);
  } else {
    const hn::Half<D> half;
    return SumByFolding(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}

/// Tree16 of the lanes of a column's vectors.
HWY_INLINE float SumOfColumn(const Vec* partial) {
  const Tag d;
  return SumByFolding(d, kVecsPerColumn == 1 ? partial[0] : hn::Add(partial[0], partial[1]));
}

/// ALiBi: scores[t] += slope * distance of token t from the row, for the tokens of these columns.
/// `distance_of_split`: that of the split's first token.
inline void AddSlope(const Columns& columns, float slope, float distance_of_split, float* scores) {
  const Tag d;
  const Vec slopes = hn::Set(d, slope);
  const Vec of_split = hn::Set(d, distance_of_split);
  for (uint32_t c = 0; c < columns.count; ++c) {
    const uint32_t first = columns.index[c] * kColumnTokens;
    for (uint32_t t = first; t < first + kColumnTokens; t += kVecLanes) {
      const Vec distance = hn::Add(of_split, hn::Iota(d, static_cast<float>(t)));
      hn::Store(hn::MulAdd(slopes, distance, hn::Load(d, scores + t)), d, scores + t);
    }
  }
}

/// Largest of the scores [range.begin, range.end), or kEmptyMax; lane by lane.
HWY_INLINE Vec MaxOfRange(const VisibleTokens& visible, TokenRange range, const float* scores) {
  constexpr size_t kChains = 4;  // a maximum waits for the one before it
  const Tag d;
  Vec max[kChains];
  QUIRE_UNROLL
  for (size_t i = 0; i < kChains; ++i) max[i] = hn::Set(d, kEmptyMax);
  uint32_t t = range.begin / kVecLanes * kVecLanes;
  const auto take_masked = [&]() QUIRE_INLINE {
    const Vec s = hn::Load(d, scores + t);
    max[0] = hn::Max(max[0], hn::IfThenElse(VisibleLanes(visible, t), s, hn::Set(d, kEmptyMax)));
    t += kVecLanes;
  };
  if (t < range.begin) take_masked();
  for (; t + kChains * kVecLanes <= range.end; t += kChains * kVecLanes) {
    QUIRE_UNROLL
    for (size_t i = 0; i < kChains; ++i) {
      max[i] = hn::Max(max[i], hn::Load(d, scores + t + i * kVecLanes));
    }
  }
  for (; t + kVecLanes <= range.end; t += kVecLanes) {
    max[0] = hn::Max(max[0], hn::Load(d, scores + t));
  }
  if (t < range.end) take_masked();
  return hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3]));
}

/// Largest score of one query vector. visible.count must be at least 1.
HWY_INLINE float MaxScore(const VisibleTokens& visible, const float* scores) {
  const Tag d;
  Vec max = hn::Set(d, kEmptyMax);
  for (uint32_t r = 0; r < visible.count; ++r) {
    max = hn::Max(max, MaxOfRange(visible, visible.ranges[r], scores));
  }
  // The order of a maximum does not show; +0 makes -0 and +0 the same.
  return hn::GetLane(hn::Add(hn::MaxOfLanes(d, max), hn::Zero(d)));
}

/// Turns the scores of one query vector, the largest of which is `max`, into weights e[t] (+0 where
/// masked inside the touched columns) and returns their sum.
HWY_INLINE float WeighScores(const VisibleTokens& visible, float max, float* scores) {
  const Tag d;
  const Vec m = hn::Set(d, max);
  // Columns whose steps hide each other's latency.
  constexpr uint32_t kAtOnce = kVecsPerColumn == 1 ? 4 : 2;
  // partial[v] lane i is the partial sum of the tokens v * Lanes + i modulo 16, ascending. A masked
  // token adds +0 to a sum that is never -0: no bit changes.
  Vec partial[kVecsPerColumn];
  QUIRE_UNROLL
  for (size_t v = 0; v < kVecsPerColumn; ++v) partial[v] = hn::Zero(d);
  const auto weigh = [&]<uint32_t kColumns, bool kWhole>(uint32_t first) QUIRE_INLINE {
    constexpr size_t kVecs = kColumns * kVecsPerColumn;
    Vec e[kVecs];
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      e[v] = hn::Sub(hn::Load(d, scores + first + v * kVecLanes), m);
    }
    Exp<kVecs>(d, e);
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      const auto t = static_cast<uint32_t>(first + v * kVecLanes);
      if (!kWhole) e[v] = hn::IfThenElseZero(VisibleLanes(visible, t), e[v]);
      hn::Store(e[v], d, scores + t);
      partial[v % kVecsPerColumn] = hn::Add(partial[v % kVecsPerColumn], e[v]);
    }
  };
  uint32_t done = 0;  // both ranges may touch one column
  for (uint32_t r = 0; r < visible.count; ++r) {
    const auto [begin, end] = visible.ranges[r];
    uint32_t column = std::max(done, begin / kColumnTokens * kColumnTokens);
    if (column < begin) {
      weigh.template operator()<1, false>(column);
      column += kColumnTokens;
    }
    for (; column + kAtOnce * kColumnTokens <= end; column += kAtOnce * kColumnTokens) {
      weigh.template operator()<kAtOnce, true>(column);
    }
    for (; column + kColumnTokens <= end; column += kColumnTokens) {
      weigh.template operator()<1, true>(column);
    }
    if (column < end) {
      weigh.template operator()<1, false>(column);
      column += kColumnTokens;
    }
    done = column;
  }
  return SumOfColumn(partial);
}

HWY_INLINE void ClearMax(uint32_t queries, const States& states) {
  std::fill_n(states.max, PaddedQueries(queries), kEmptyMax);
}

/// a = Merge(a, b), a before b, for every query vector. factors has room for 2 * PaddedQueries.
inline void MergeStates(uint32_t queries, size_t out_stride, float* factors, const States& a,
                        const States& b) {
  const Tag d;
  const uint32_t padded = PaddedQueries(queries);
  float* factors_a = factors;
  float* factors_b = factors + padded;
  float* max = a.max;
  for (uint32_t q = 0; q < padded; q += kVecLanes) {
    const Vec max_a = hn::Load(d, a.max + q);
    const Vec max_b = hn::Load(d, b.max + q);
    const Vec m = hn::Max(max_a, max_b);
    hn::Store(Exp(d, hn::Sub(max_a, m)), d, factors_a + q);
    hn::Store(Exp(d, hn::Sub(max_b, m)), d, factors_b + q);
  }
  for (uint32_t q = 0; q < queries; ++q) {
    if (b.max[q] == kEmptyMax) continue;
    float* out_a = a.out + q * out_stride;
    const float* out_b = b.out + q * out_stride;
    if (max[q] == kEmptyMax) {
      max[q] = b.max[q];
      a.sum[q] = b.sum[q];
      std::memcpy(out_a, out_b, out_stride * sizeof(float));
      continue;
    }
    max[q] = std::max(max[q], b.max[q]);
    const Vec ea = hn::Set(d, factors_a[q]);
    const Vec eb = hn::Set(d, factors_b[q]);
    const Vec sum = hn::MulAdd(hn::Set(d, a.sum[q]), ea, hn::Mul(hn::Set(d, b.sum[q]), eb));
    a.sum[q] = hn::GetLane(sum);
    for (size_t i = 0; i < out_stride; i += kVecLanes) {
      const Vec scaled = hn::Mul(hn::Load(d, out_b + i), eb);
      hn::Store(hn::MulAdd(hn::Load(d, out_a + i), ea, scaled), d, out_a + i);
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Scales and mids of docs/codecs.md: kernels multiply bare codes; what a token's codes are worth
// comes to its scores afterwards and to its weights beforehand.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_SCALES_INL_H_
#undef QUIRE_ATTENTION_SCALES_INL_H_
#else
#define QUIRE_ATTENTION_SCALES_INL_H_
#endif

#include <algorithm>

#include "attention/shape.h"
#include "codec/planes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Scales and mids of one head's tokens of a split, where there are columns.
struct HeadScales {
  alignas(64) float scale[kSplitTokens];
  alignas(64) float mid[kSplitTokens];
};

/// `first` are the columns' scales of the item's first KV head.
inline void LoadScales(const StreamLayout& stream, const Columns& columns,
                       const std::byte* const* first, uint32_t head, HeadScales* scales) {
  const Tag d;
  const bool mids = codec::HasMids(stream.codec);
  const size_t mid_bytes = size_t{stream.block_tokens} * cn::F16Values::kBytes;
  QUIRE_UNROLL_FEW
  for (uint32_t c = 0; c < columns.count; ++c) {
    const std::byte* from = first[c] + head * stream.scale_head_stride_bytes;
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerColumn; ++v) {
      const size_t to = columns.index[c] * kColumnTokens + v * kVecLanes;
      const std::byte* codes = from + v * kVecLanes * cn::F16Values::kBytes;
      hn::Store(cn::F16Values::Load(d, codes), d, scales->scale + to);
      if (mids) hn::Store(cn::F16Values::Load(d, codes + mid_bytes), d, scales->mid + to);
    }
  }
}

/// f(t) for the first lane t of every vector of the columns' tokens.
template <class F>
HWY_INLINE void ForColumnVecs(const Columns& columns, const F& f) {
  if (columns.count == 0) return;
  const uint32_t first = columns.index[0];
  if (columns.index[columns.count - 1] - first + 1 == columns.count) {  // no gap
    const size_t end = size_t{first + columns.count} * kColumnTokens;
    QUIRE_UNROLL_FEW
    for (size_t t = size_t{first} * kColumnTokens; t < end; t += kVecLanes) f(t);
    return;
  }
  for (uint32_t c = 0; c < columns.count; ++c) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerColumn; ++v) f(columns.index[c] * kColumnTokens + v * kVecLanes);
  }
}

/// Scores of one query vector: s * scale, or fma(scale, s, mid * query_sum).
template <bool kMids>
HWY_INLINE void ScaleScores(const Columns& columns, const HeadScales& scales, float query_sum,
                            float* scores) {
  const Tag d;
  const Vec sum = hn::Set(d, query_sum);
  ForColumnVecs(columns, [&](size_t t) QUIRE_INLINE {
    const Vec s = hn::Load(d, scores + t);
    const Vec scale = hn::Load(d, scales.scale + t);
    const Vec scaled =
        kMids ? hn::MulAdd(scale, s, hn::Mul(hn::Load(d, scales.mid + t), sum)) : hn::Mul(s, scale);
    hn::Store(scaled, d, scores + t);
  });
}

/// Weights of one query vector: e * scale, times `unit`, a power of two.
HWY_INLINE void ScaleWeights(const Columns& columns, const HeadScales& scales, float unit,
                             float* weights) {
  const Tag d;
  const Vec units = hn::Set(d, unit);
  ForColumnVecs(columns, [&](size_t t) QUIRE_INLINE {
    const Vec weight = hn::Mul(hn::Load(d, weights + t), hn::Load(d, scales.scale + t));
    hn::Store(hn::Mul(weight, units), d, weights + t);
  });
}

/// The tokens of `visible` that are in `columns`, which have no gap that `visible` has not.
inline VisibleTokens InColumns(const VisibleTokens& visible, const Columns& columns) {
  const uint32_t first = columns.index[0] * kColumnTokens;
  const uint32_t last_end = (columns.index[columns.count - 1] + 1) * kColumnTokens;
  VisibleTokens inside;
  for (uint32_t r = 0; r < visible.count; ++r) {
    const TokenRange range = {std::max(visible.ranges[r].begin, first),
                              std::min(visible.ranges[r].end, last_end)};
    if (range.begin < range.end) inside.ranges[inside.count++] = range;
  }
  return inside;
}

/// out[d] + z for every channel d of every query vector.
inline void AddMids(const float* sums, uint32_t queries, float* out, size_t out_stride) {
  const Tag d;
  for (uint32_t q = 0; q < queries; ++q) {
    const Vec sum = hn::Set(d, sums[q]);
    float* row = out + q * out_stride;
    for (size_t i = 0; i < out_stride; i += kVecLanes) {
      hn::Store(hn::Add(hn::Load(d, row + i), sum), d, row + i);
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Kernels for many query vectors, where arithmetic is the limit: K and V of a split are widened
// once into f32 panels and used by every query vector of the tile.
#include "attention/shape.h"
#include "attention/tile-inl.h"
#include "codec/formats/fp8-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_PREFILL_INL_H_
#undef QUIRE_ATTENTION_PREFILL_INL_H_
#else
#define QUIRE_ATTENTION_PREFILL_INL_H_
#endif

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Query vectors per register tile: with one panel of two vectors 12 chains of 16 registers (AVX2),
/// with two panels of one vector 24 of 32 (AVX-512).
inline constexpr int kTileRows = kVecLanes >= 16 ? 12 : 6;

/// Panels per register tile of `rows` query vectors: fewer rows take more panels, to keep enough
/// chains.
constexpr int TilePanels(int rows) {
  const int chains = kVecLanes >= 16 ? 24 : 12;
  return std::max(1, std::min(8, chains / (rows * static_cast<int>(kVecsPerColumn))));
}

/// One column of K to [dim][16] f32.
template <class Values>
void ExpandKey(const std::byte* key, size_t row_bytes, size_t dim, float* to) {
  const Tag d;
  for (size_t i = 0; i < dim; ++i) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerColumn; ++v) {
      const Vec x = Values::Load(d, key + i * row_bytes + v * kVecLanes * Values::kBytes);
      hn::Store(x, d, to + i * kColumnTokens + v * kVecLanes);
    }
  }
}

/// The same of K that lies token by token, as engines with arenas of their own have it: a row is
/// widened, then spread over the column.
template <class Values>
void ExpandKeyRows(const std::byte* key, size_t, size_t dim, float* to) {
  const Tag d;
  HWY_ALIGN float row[kDimMax];
  for (size_t t = 0; t < kColumnTokens; ++t) {
    const std::byte* from = key + t * dim * Values::kBytes;
    size_t i = 0;
    for (; i + kVecLanes <= dim; i += kVecLanes) {
      hn::Store(Values::Load(d, from + i * Values::kBytes), d, row + i);
    }
    const hn::CappedTag<float, 1> d1;
    for (; i < dim; ++i) hn::Store(Values::Load(d1, from + i * Values::kBytes), d1, row + i);
    for (i = 0; i < dim; ++i) to[i * kColumnTokens + t] = row[i];
  }
}

/// One panel's channels [begin, end) of `tokens` rows of V, with vectors that do not read beyond a
/// row.
template <class Values, class D>
HWY_INLINE void ExpandChannels(D d, const std::byte* value, size_t row_bytes, uint32_t tokens,
                               size_t begin, size_t end, float* panel) {
  constexpr size_t kLanesOfTag = hn::MaxLanes(D());
  size_t i = begin;
  for (; i + kLanesOfTag <= end; i += kLanesOfTag) {
    for (uint32_t t = 0; t < tokens; ++t) {
      const auto x = Values::Load(d, value + t * row_bytes + i * Values::kBytes);
      hn::StoreU(x, d, panel + t * kPanelDims + i);
    }
  }
  if constexpr (kLanesOfTag > 1) {
    if (i < end) {
      ExpandChannels<Values>(hn::Half<D>(), value, row_bytes, tokens, i, end, panel);
    }
  }
}

/// One column of V to its 16 token rows of every panel [256 tokens][16 channels]. Channels beyond
/// dim are left as they are: nothing reads their sums.
template <class Values>
void ExpandValue(const std::byte* value, size_t dim, float* panels) {
  for (size_t i = 0; i < dim; i += kPanelDims) {
    ExpandChannels<Values>(Tag(), value + i * Values::kBytes, dim * Values::kBytes, kColumnTokens,
                           0, std::min<size_t>(kPanelDims, dim - i), panels);
    panels += kSplitTokens * kPanelDims;
  }
}

/// sum[r][...] += Chain over i of (left[r][i], right[panel][i][16]): both products of attention. In
/// the first one left = q and right = K, from zero; in the second left = weights and right = V,
/// onto out.
template <int kRows, int kPanels, bool kFromZero>
HWY_INLINE void OuterTile(const float* left, size_t left_stride, const float* right,
                          size_t panel_stride, size_t length, float* sums, size_t sums_stride) {
  constexpr int kVecs = kPanels * static_cast<int>(kVecsPerColumn);
  constexpr int kPerPanel = static_cast<int>(kVecsPerColumn);
  const Tag d;
  Vec sum[kRows][kVecs];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sum[r][v] = kFromZero ? hn::Zero(d) : hn::Load(d, sums + r * sums_stride + v * kVecLanes);
    }
  }
  for (size_t i = 0; i < length; ++i) {
    Vec x[kVecs];
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      x[v] = hn::Load(
          d, right + (v / kPerPanel) * panel_stride + i * kPanelDims + (v % kPerPanel) * kVecLanes);
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = hn::Set(d, left[r * left_stride + i]);
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) sum[r][v] = hn::MulAdd(factor, x[v], sum[r][v]);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      hn::Store(sum[r][v], d, sums + r * sums_stride + v * kVecLanes);
    }
  }
}

/// Panels [0, panels) for kRows query vectors.
template <int kRows, bool kFromZero>
void OuterPanels(const float* left, size_t left_stride, const float* right, size_t panel_stride,
                 uint32_t panels, size_t length, float* sums, size_t sums_stride) {
  constexpr int kPanels = TilePanels(kRows);
  uint32_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    OuterTile<kRows, kPanels, kFromZero>(left, left_stride, right + p * panel_stride, panel_stride,
                                         length, sums + p * kPanelDims, sums_stride);
  }
  for (; p < panels; ++p) {
    OuterTile<kRows, 1, kFromZero>(left, left_stride, right + p * panel_stride, panel_stride,
                                   length, sums + p * kPanelDims, sums_stride);
  }
}

/// The largest register tile of at most `rows` rows.
constexpr uint32_t TileRowsFor(uint32_t rows) {
  if (rows >= static_cast<uint32_t>(kTileRows)) return kTileRows;
  return rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
}

/// f<kRows>() for so many rows as TileRowsFor says.
template <class F>
HWY_INLINE void ForTileRows(uint32_t rows, const F& f) {
  switch (rows) {
    case 1: f.template operator()<1>(); break;
    case 2: f.template operator()<2>(); break;
    case 4: f.template operator()<4>(); break;
    default: f.template operator()<kTileRows>(); break;
  }
}

template <bool kFromZero>
void OuterRows(uint32_t rows, const float* left, size_t left_stride, const float* right,
               size_t panel_stride, uint32_t panels, size_t length, float* sums,
               size_t sums_stride) {
  for (uint32_t row = 0; row < rows; row += TileRowsFor(rows - row)) {
    ForTileRows(TileRowsFor(rows - row), [&]<int kRows>() HWY_ATTR {
      OuterPanels<kRows, kFromZero>(left + row * left_stride, left_stride, right, panel_stride,
                                    panels, length, sums + row * sums_stride, sums_stride);
    });
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

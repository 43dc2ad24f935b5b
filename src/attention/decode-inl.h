// Kernels that read K and V once, straight from their blocks: for few query vectors, where memory
// is the limit. All heads of a group share each load; software prefetch runs a few columns ahead,
// line by line with the loop that consumes as many.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_DECODE_INL_H_
#undef QUIRE_ATTENTION_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_DECODE_INL_H_
#endif

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Columns of one split that some query sees.
struct Columns {
  uint32_t count = 0;
  uint32_t index[kColumnsPerSplit];              // which column of the split, ascending
  const std::byte* key[kColumnsPerSplit];        // [key.dim][16 tokens], rows key_row_bytes apart
  const std::byte* value[kColumnsPerSplit];      // [16 tokens][value.dim], contiguous
  const std::byte* key_ahead[kColumnsPerSplit];  // what to prefetch while reading key[i]
  const std::byte* value_ahead[kColumnsPerSplit];
};

/// sum[h][..] += query[h][i] * key[column][i][..]: one step of every chain of a tile.
template <class Values, int kHeads, int kVecs>
HWY_INLINE void ScoreStep(const float* query, size_t dim, size_t i, const std::byte* const* key,
                          size_t key_row_bytes, Vec (&sum)[kHeads][kVecs]) {
  const Tag d;
  Vec k[kVecs];
  QUIRE_UNROLL
  for (size_t v = 0; v < kVecs; ++v) {
    k[v] = Values::Load(d, key[v / kVecsPerColumn] + i * key_row_bytes +
                               (v % kVecsPerColumn) * kVecLanes * Values::kBytes);
  }
  QUIRE_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    const Vec q = hn::Set(d, query[h * dim + i]);
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) sum[h][v] = hn::MulAdd(q, k[v], sum[h][v]);
  }
}

/// Scores of kHeads query vectors against kColumns columns: one chain over d per score.
template <class Values, int kHeads, int kColumns>
HWY_INLINE void ScoreColumns(const float* query, size_t dim, const std::byte* const* key,
                             size_t key_row_bytes, const std::byte* const* ahead, bool prefetch,
                             const uint32_t* index, float* scores) {
  constexpr int kVecs = kColumns * static_cast<int>(kVecsPerColumn);
  constexpr size_t kDimsPerLine = kLineBytes / (kColumnTokens * Values::kBytes);
  static_assert(kDimsPerLine >= 1);
  const Tag d;
  Vec sum[kHeads][kVecs];
  QUIRE_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) sum[h][v] = hn::Zero(d);
  }
  size_t i = 0;
  for (; i + kDimsPerLine <= dim; i += kDimsPerLine) {
    if (prefetch) {
      QUIRE_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        PrefetchLine(ahead[c] + i * kColumnTokens * Values::kBytes);
      }
    }
    QUIRE_UNROLL
    for (size_t step = 0; step < kDimsPerLine; ++step) {
      ScoreStep<Values>(query, dim, i + step, key, key_row_bytes, sum);
    }
  }
  for (; i < dim; ++i) ScoreStep<Values>(query, dim, i, key, key_row_bytes, sum);
  QUIRE_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      float* to = scores + h * kSplitTokens + index[v / kVecsPerColumn] * kColumnTokens;
      hn::StoreU(sum[h][v], d, to + (v % kVecsPerColumn) * kVecLanes);
    }
  }
}

/// Scores of kHeads query vectors against all columns. More columns at a time for fewer heads, so
/// that the number of independent chains covers the latency of the multiply-add.
template <class Values, int kHeads>
void ScoreHeads(const float* query, size_t dim, const Columns& columns, size_t key_row_bytes,
                bool prefetch, float* scores) {
  constexpr int kChains = kVecLanes >= 16 ? 16 : 8;
  constexpr int kColumns =
      std::max(1, std::min(4, kChains / (kHeads * static_cast<int>(kVecsPerColumn))));
  uint32_t c = 0;
  for (; c + kColumns <= columns.count; c += kColumns) {
    ScoreColumns<Values, kHeads, kColumns>(query, dim, columns.key + c, key_row_bytes,
                                           columns.key_ahead + c, prefetch, columns.index + c,
                                           scores);
  }
  for (; c < columns.count; ++c) {
    ScoreColumns<Values, kHeads, 1>(query, dim, columns.key + c, key_row_bytes,
                                    columns.key_ahead + c, prefetch, columns.index + c, scores);
  }
}

/// scores[q][column] for every query vector; four heads at a time read the same columns.
template <class Values>
void StreamScores(const float* query, uint32_t queries, size_t dim, const Columns& columns,
                  size_t key_row_bytes, float* scores) {
  for (uint32_t q = 0; q < queries; q += 4) {
    const float* from = query + q * dim;
    float* to = scores + size_t{q} * kSplitTokens;
    const bool first = q == 0;
    switch (std::min(4u, queries - q)) {
      case 1: ScoreHeads<Values, 1>(from, dim, columns, key_row_bytes, first, to); break;
      case 2: ScoreHeads<Values, 2>(from, dim, columns, key_row_bytes, first, to); break;
      case 3: ScoreHeads<Values, 3>(from, dim, columns, key_row_bytes, first, to); break;
      default: ScoreHeads<Values, 4>(from, dim, columns, key_row_bytes, first, to); break;
    }
  }
}

/// out[h][0 .. kVecs * Lanes(d)) += weights[h][t] * value[t] for t ascending: one chain per output.
template <class Values, int kHeads, int kVecs, class D>
HWY_INLINE void ValueTile(D d, const std::byte* value, size_t row_bytes, const float* weights,
                          uint32_t tokens, const std::byte* ahead, float* out, size_t out_stride) {
  constexpr size_t kLanesOfTag = hn::MaxLanes(D());
  constexpr size_t kTileBytes = kVecs * kLanesOfTag * Values::kBytes;
  hn::Vec<D> sum[kHeads][kVecs];
  QUIRE_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sum[h][v] = hn::LoadU(d, out + h * out_stride + v * kLanesOfTag);
    }
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    if (ahead != nullptr) {
      QUIRE_UNROLL
      for (size_t byte = 0; byte < kTileBytes; byte += kLineBytes) {
        PrefetchLine(ahead + t * kTileBytes + byte);
      }
    }
    hn::Vec<D> x[kVecs];
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      x[v] = Values::Load(d, value + t * row_bytes + v * kLanesOfTag * Values::kBytes);
    }
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const auto w = hn::Set(d, weights[h * kSplitTokens + t]);
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) sum[h][v] = hn::MulAdd(w, x[v], sum[h][v]);
    }
  }
  QUIRE_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      hn::StoreU(sum[h][v], d, out + h * out_stride + v * kLanesOfTag);
    }
  }
}

/// Channels [begin, dim) in tiles of kVecs vectors, then of half as many, and the last few channels
/// with vectors half as long, so that no byte beyond the row is read.
template <class Values, int kHeads, int kVecs, class D>
HWY_INLINE void ValueTiles(D d, size_t begin, size_t dim, const std::byte* value,
                           const float* weights, uint32_t tokens, const std::byte* ahead,
                           float* out, size_t out_stride) {
  constexpr size_t kTile = kVecs * hn::MaxLanes(D());
  size_t i = begin;
  for (; i + kTile <= dim; i += kTile) {
    ValueTile<Values, kHeads, kVecs>(d, value + i * Values::kBytes, dim * Values::kBytes, weights,
                                     tokens, ahead, out + i, out_stride);
    if (ahead != nullptr) ahead += tokens * kTile * Values::kBytes;
  }
  if (i == dim) return;
  if constexpr (kVecs > 1) {
    ValueTiles<Values, kHeads, kVecs / 2>(d, i, dim, value, weights, tokens, ahead, out,
                                          out_stride);
  } else if constexpr (hn::MaxLanes(D()) > 1) {
    ValueTiles<Values, kHeads, 1>(hn::Half<D>(), i, dim, value, weights, tokens, ahead, out,
                                  out_stride);
  }
}

/// Adds the weighted values of tokens [begin, end) of one column to out of every query vector.
template <class Values>
void StreamValues(const std::byte* column, size_t dim, uint32_t begin, uint32_t end,
                  const std::byte* ahead, const float* weights, uint32_t queries, float* out,
                  size_t out_stride) {
  const Tag d;
  const std::byte* value = column + begin * dim * Values::kBytes;
  const uint32_t tokens = end - begin;
  for (uint32_t q = 0; q < queries; q += 4) {
    const float* w = weights + size_t{q} * kSplitTokens + begin;
    float* to = out + q * out_stride;
    if (q != 0) ahead = nullptr;
    switch (std::min(4u, queries - q)) {
      case 1: ValueTiles<Values, 1, 8>(d, 0, dim, value, w, tokens, ahead, to, out_stride); break;
      case 2: ValueTiles<Values, 2, 4>(d, 0, dim, value, w, tokens, ahead, to, out_stride); break;
      case 3: ValueTiles<Values, 3, 4>(d, 0, dim, value, w, tokens, ahead, to, out_stride); break;
      default: ValueTiles<Values, 4, 2>(d, 0, dim, value, w, tokens, ahead, to, out_stride); break;
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Single rows over codes of fp8 that are widened to f16 in scratch first, a few planes at a time
// (f16-inl.h). decode-inl.h says how planes are read.
#include "attention/ahead-inl.h"
#include "attention/f16-inl.h"
#include "attention/weigh-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_F16_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_F16_DECODE_INL_H_
#undef QUIRE_ATTENTION_F16_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_F16_DECODE_INL_H_
#endif

#include <algorithm>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Channels that are widened at a time.
inline constexpr size_t kScratchDims = 128;

/// Columns of K that are widened at a time. With more of them, scratch, codes and prefetched bytes
/// would not fit the first-level cache.
inline constexpr uint32_t kScratchColumns = kVecLanes >= 16 ? 4 : 2;

/// A few columns of K, or the tokens of one plane of V.
struct F16Scratch {
  alignas(64) uint16_t f16_values[kScratchColumns * kScratchDims * kColumnTokens];

  uint16_t* column(size_t c) { return f16_values + c * kScratchDims * kColumnTokens; }
};

HWY_INLINE Vec LoadPiece(const uint16_t* f16_values, size_t piece) {
  return cn::F16Values::Load(Tag(), reinterpret_cast<const std::byte*>(f16_values) +
                                        piece * kVecLanes * cn::F16Values::kBytes);
}

/// As ScoreTile, of channels [begin, end) that are in scratch. Fetches `lines` with every four.
template <class Values, int kQueries, int kColumns>
void ScoreF16(const float* query, size_t dim, size_t begin, size_t end, F16Scratch* scratch,
              size_t first, const uint32_t* index, float* scores, LinesAhead* ahead,
              uint32_t lines) {
  constexpr size_t kPieces = kColumnTokens / kVecLanes;
  const Tag d;
  Vec sum[kQueries][kColumns][kPieces];
  const auto at = [&](int h, int c, size_t v) {
    return scores + h * kSplitTokens + index[c] * kColumnTokens + v * kVecLanes;
  };
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      QUIRE_UNROLL
      for (size_t v = 0; v < kPieces; ++v) {
        sum[h][c][v] = begin == 0 ? hn::Zero(d) : hn::Load(d, at(h, c, v));
      }
    }
  }
  const auto add_channel = [&](const uint16_t* rows, size_t i) QUIRE_INLINE {
    Vec q[kQueries];
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) q[h] = hn::Set(d, query[h * dim + i]);
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      QUIRE_UNROLL
      for (size_t v = 0; v < kPieces; ++v) {
        const Vec k = LoadPiece(rows + c * kScratchDims * kColumnTokens, v);
        QUIRE_UNROLL
        for (int h = 0; h < kQueries; ++h) sum[h][c][v] = hn::MulAdd(q[h], k, sum[h][c][v]);
      }
    }
  };
  const uint16_t* rows = scratch->column(first);
  size_t i = begin;
  for (; i + 4 <= end; i += 4, rows += 4 * kColumnTokens) {
    ahead->Fetch(lines);
    QUIRE_UNROLL
    for (size_t j = 0; j < 4; ++j) add_channel(rows + j * kColumnTokens, i + j);
  }
  for (; i < end; ++i, rows += kColumnTokens) add_channel(rows, i);
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      QUIRE_UNROLL
      for (size_t v = 0; v < kPieces; ++v) {
        const bool last = Values::kF16Unit != 1.0f && end == dim;
        const Vec score = sum[h][c][v];
        hn::Store(last ? hn::Mul(score, hn::Set(d, Values::kF16Unit)) : score, d, at(h, c, v));
      }
    }
  }
}

/// As StreamScores.
template <class Values>
void StreamHalfScores(const float* query, const StreamView& key, const StreamView& value,
                      const Columns& columns, float* scores, LinesAhead* lines) {
  const GroupSlices slices(key.group);
  const bool evenly = lines->lines() != 0;
  F16Scratch scratch;
  for (uint32_t c = 0; c < columns.count; c += kScratchColumns) {
    const uint32_t count = std::min(kScratchColumns, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit] = {};
      if (!evenly) PlanesAhead(key, value, columns, c, count, head, ahead);
      FetchKeyScales(key, columns, c, count, head);
      for (size_t begin = 0; begin < key.dim; begin += kScratchDims) {
        const size_t end = std::min(key.dim, begin + kScratchDims);
        for (uint32_t i = 0; i < count; ++i) {
          KeyF16<Values>(columns.key[c + i] + offset, key.row_bytes, begin, end,
                         {ahead[i], key.head_stride_bytes}, scratch.column(i));
        }
        uint32_t q = head * key.group;
        for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
          const auto score = [&]<int kQueries>() HWY_ATTR {
            constexpr int kColumns = std::min(ColumnsPerTile(kQueries), kScratchColumns);
            const float* from = query + q * key.dim;
            const uint32_t* index = columns.index + c;
            float* to = scores + size_t{q} * kSplitTokens;
            // As many as are read, for the first slice.
            const uint32_t fetched = slice == 0 ? 1 : 0;
            uint32_t i = 0;
            for (; i + kColumns <= count; i += kColumns) {
              ScoreF16<Values, kQueries, kColumns>(from, key.dim, begin, end, &scratch, i,
                                                   index + i, to, lines, fetched * kColumns);
            }
            for (; i < count; ++i) {
              ScoreF16<Values, kQueries, 1>(from, key.dim, begin, end, &scratch, i, index + i, to,
                                            lines, fetched);
            }
          };
          ForSlice(slices.size(slice), score);
        }
      }
    }
  }
}

/// kVecs vectors of channels of all tokens in scratch, from vector `first` on, sums in registers.
/// Fetches as many lines as that was, if `ahead` is not null.
template <int kQueries, int kVecs>
HWY_INLINE void WeighPieces(const uint16_t* rows, size_t row_stride, uint32_t tokens, size_t first,
                            const float* weights, float* out, size_t out_stride,
                            LinesAhead* ahead) {
  constexpr uint32_t kVecsOfLine = kLineBytes / kVecLanes;
  const Tag d;
  Vec sum[kQueries][kVecs];
  const uint16_t* piece[kVecs];
  QUIRE_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    piece[v] = rows + (first + v) * kVecLanes;
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) {
      sum[h][v] = hn::LoadU(d, out + h * out_stride + (first + v) * kVecLanes);
    }
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    if (ahead != nullptr && kVecs >= kVecsOfLine) ahead->Fetch(kVecs / kVecsOfLine);
    Vec w[kQueries];
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) w[h] = hn::Set(d, weights[h * kSplitTokens + t]);
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const Vec x = LoadPiece(piece[v] + t * row_stride, 0);
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) sum[h][v] = hn::MulAdd(w[h], x, sum[h][v]);
    }
  }
  QUIRE_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) {
      hn::StoreU(sum[h][v], d, out + h * out_stride + (first + v) * kVecLanes);
    }
  }
}

/// Channels of `out` are those in scratch; its rows are padded, and values beyond the last channel
/// are not used.
template <int kQueries>
void WeighF16(const uint16_t* rows, size_t row_stride, uint32_t tokens, size_t channels,
              const float* weights, float* out, size_t out_stride, LinesAhead* ahead) {
  constexpr int kVecs = static_cast<int>(kTileVecs) / kQueries;
  const size_t pieces = (channels + kVecLanes - 1) / kVecLanes;
  size_t first = 0;
  for (; first + kVecs <= pieces; first += kVecs) {
    WeighPieces<kQueries, kVecs>(rows, row_stride, tokens, first, weights, out, out_stride, ahead);
  }
  for (; first < pieces; ++first) {
    WeighPieces<kQueries, 1>(rows, row_stride, tokens, first, weights, out, out_stride, ahead);
  }
}

/// As StreamValues, with weights that are Values::kF16Unit times as large.
template <class Values>
void StreamHalfValues(const ValueRun* runs, uint32_t run_count, const StreamView& key,
                      const StreamView& view, const Columns* next, const float* weights, float* out,
                      size_t out_stride, LinesAhead* lines) {
  const GroupSlices slices(view.group);
  const bool evenly = lines->lines() != 0;
  const uint32_t planes = run_count * view.heads;
  F16Scratch scratch;
  for (uint32_t p = 0; p < planes; ++p) {
    const uint32_t head = p % view.heads;
    const ValueRun& run = runs[p / view.heads];
    const std::byte* codes = run.value + head * view.head_stride_bytes;
    const std::byte* far = PlaneAhead(runs, p, planes, key, view, next);
    for (size_t begin = 0; begin < view.dim; begin += kScratchDims) {
      const size_t end = std::min(view.dim, begin + kScratchDims);
      const size_t row_stride = RoundUp(end - begin, kWidened);
      ValueF16<Values>(codes, view.dim, run.tokens, begin, end,
                       {evenly ? nullptr : far + begin, view.head_stride_bytes}, scratch.f16_values,
                       row_stride);
      size_t q = size_t{head} * view.group;
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        const float* w = weights + q * kSplitTokens + run.first;
        float* to = out + q * out_stride + begin;
        const auto weigh = [&]<int kQueries>() HWY_ATTR {
          WeighF16<kQueries>(scratch.f16_values, row_stride, run.tokens, end - begin, w, to,
                             out_stride, slice == 0 ? lines : nullptr);
        };
        ForSlice(slices.size(slice), weigh);
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Single rows over whole-number codes: planes one after the other in the order they lie in memory,
// each fetched some planes before it is needed (decode-inl.h says why).
#include "attention/decode-inl.h"
#include "attention/whole-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_WHOLE_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_WHOLE_DECODE_INL_H_
#undef QUIRE_ATTENTION_WHOLE_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_WHOLE_DECODE_INL_H_
#endif

#include <algorithm>

#include "attention/fixed.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Query vectors in fixed point.
struct FixedQueries {
  const int16_t* codes = nullptr;  // [queries, stride], zeros after the last channel
  size_t stride = 0;
  const float* units = nullptr;  // [queries]

  FixedQueries From(size_t query) const { return {codes + query * stride, stride, units + query}; }
};

/// Weights in fixed point.
struct FixedWeights {
  const int16_t* codes = nullptr;  // [queries, kSplitTokens], 0 where there is no column
  const float* units = nullptr;    // [queries, groups of a split]

  FixedWeights From(size_t query) const {
    return {codes + query * kSplitTokens, units + query * (kSplitTokens / kGroupTokens)};
  }
};

template <int kQueries, int kVecs>
HWY_INLINE void ClearSums(SumVec (*sum)[kVecs]) {
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) sum[h][v] = hn::Zero(SumTag());
  }
}

/// Scores of one column: sums times the queries' units.
template <int kQueries>
HWY_INLINE void StoreScores(const SumVec (*sum)[kVecsPerSixteen], const float* units,
                            float* scores) {
  const hn::RebindToFloat<SumTag> df;
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    const auto unit = hn::Set(df, units[h]);
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerSixteen; ++v) {
      hn::Store(hn::Mul(hn::ConvertTo(df, sum[h][v]), unit), df,
                scores + h * kSplitTokens + v * kSumLanes);
    }
  }
}

inline WholeColumn KeyOfHead(const Columns& columns, uint32_t c, const StreamView& key,
                             uint32_t head) {
  const size_t offset = head * key.head_stride_bytes;
  return {.codes = columns.key[c] + offset,
          .signs = columns.key_signs[c] + offset,
          .block_tokens = key.layout->block_tokens,
          .pairs = codec::PairCount(key.layout->dim)};
}

inline WholeRows ValueOfHead(const Columns& columns, uint32_t c, const StreamView& value,
                             uint32_t head) {
  const StreamLayout& layout = *value.layout;
  const size_t offset = head * value.head_stride_bytes;
  const uint32_t in_block = columns.index[c] * kColumnTokens % layout.block_tokens;
  const std::byte* codes = columns.value[c] + offset;
  return {.codes = codes,
          .signs = columns.value_signs[c] + offset,
          .row_bytes = codec::RowBytes(layout.codec, layout.dim, 2),
          .sign_bytes = codec::PairSignBytes(layout.dim),
          .plane = codes - ColumnOffset(layout, in_block),
          .first_token = in_block};
}

/// What is read some planes after the plane of column c at `head`: the same column of a later head,
/// the column `count` further, or the first columns of `next` (or null).
inline const std::byte* ValueAhead(const Columns& columns, uint32_t c, uint32_t head,
                                   const StreamView& value, uint32_t count, const Columns* next) {
  constexpr uint32_t kHeadsAhead = 2;
  uint32_t then = head + kHeadsAhead;
  if (then < value.heads) return columns.value[c] + then * value.head_stride_bytes;
  then = std::min(then - value.heads, value.heads - 1);
  if (c + count < columns.count) {
    return columns.value[c + count] + then * value.head_stride_bytes;
  }
  if (next != nullptr) return next->key[std::min(then * 2 + c % 2, next->count - 1)];
  return columns.value[c] + head * value.head_stride_bytes;
}

/// Scores of one column. `ahead` is the column that is read later.
template <Codec kCodec, int kQueries>
void ScoreWholeColumn(const FixedQueries& queries, WholeColumn column, const std::byte* ahead,
                      float* scores) {
  constexpr size_t kStepsPerLine = kLineBytes / (16 * kStepBytes<kCodec>);
  constexpr size_t kPairs = kPairsPerStep<kCodec>;
  constexpr int kVecs = static_cast<int>(kVecsPerSixteen);
  SumVec sum[kQueries][kVecs];
  ClearSums<kQueries, kVecs>(sum);
  const int16_t* query = queries.codes;
  const auto add_step = [&]() QUIRE_INLINE {
    PairVec k[kPairs][kVecsPerSixteen];
    LoadKeys<kCodec>(column, k);
    QUIRE_UNROLL
    for (size_t p = 0; p < kPairs; ++p) {
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        const PairVec q = SetPair(query + h * queries.stride + 2 * p);
        QUIRE_UNROLL
        for (size_t v = 0; v < kVecsPerSixteen; ++v) {
          sum[h][v] = AddProducts(q, k[p][v], sum[h][v]);
        }
      }
    }
    query += 2 * kPairs;
    NextStep<kCodec>(&column);
  };
  while (column.pairs >= kPairs * kStepsPerLine) {
    hwy::Prefetch(ahead);
    ahead += column.block_tokens * kStepBytes<kCodec> * kStepsPerLine;
    Repeat<kStepsPerLine>(add_step);
  }
  while (column.pairs >= kPairs) add_step();
  if (kPairs > 1 && column.pairs != 0) add_step();
  StoreScores<kQueries>(sum, queries.units, scores);
}

/// scores[q][column] for every query vector q of the item and every column, without the scales.
template <Codec kCodec>
void StreamWholeScores(const FixedQueries& queries, const StreamView& key, const StreamView& value,
                       const Columns& columns, float* scores) {
  const uint32_t streams = std::max(kStreams, key.block_columns);
  const GroupParts parts(key.group);
  for (uint32_t c = 0; c < columns.count; c += streams) {
    const uint32_t count = std::min(streams, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const std::byte* ahead[kColumnsPerSplit];
      PlanesAhead(key, value, columns, c, count, head, ahead);
      FetchScales(key, value, columns, c, count, head);
      uint32_t q = head * key.group;
      for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
        ForPart(parts.size(part), [&]<int kQueries>() HWY_ATTR {
          for (uint32_t i = 0; i < count; ++i) {
            ScoreWholeColumn<kCodec, kQueries>(
                queries.From(q), KeyOfHead(columns, c + i, key, head), ahead[i],
                scores + size_t{q} * kSplitTokens + columns.index[c + i] * kColumnTokens);
          }
        });
      }
    }
  }
}

/// The columns of one group of tokens, of one head.
struct WholeGroup {
  uint32_t count = 0;
  uint32_t first[kGroupTokens / kColumnTokens];  // token of the split
  WholeRows rows[kGroupTokens / kColumnTokens];
  const std::byte* ahead[kGroupTokens / kColumnTokens];
  uint32_t unit = 0;  // of the split's
};

/// out += sums times the group's units.
template <int kQueries, int kVecs>
HWY_INLINE void AddGroup(const SumVec (*sum)[kVecs], const FixedWeights& weights, uint32_t unit,
                         float* out, size_t out_stride) {
  const hn::RebindToFloat<SumTag> df;
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    const auto of_group = hn::Set(df, weights.units[h * (kSplitTokens / kGroupTokens) + unit]);
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      float* to = out + h * out_stride + v * kSumLanes;
      hn::Store(hn::MulAdd(hn::ConvertTo(df, sum[h][v]), of_group, hn::Load(df, to)), df, to);
    }
  }
}

/// out += weights * values of a group for the channels that kLoads loads give, from load i on.
template <Codec kCodec, int kQueries, int kLoads>
HWY_INLINE void WeighLoads(const WholeGroup& group, size_t i, const FixedWeights& weights,
                           float* out, size_t out_stride) {
  constexpr int kVecs = kLoads * kVecsPerLoad<kCodec>;
  SumVec sum[kQueries][kVecs];
  ClearSums<kQueries, kVecs>(sum);
  for (uint32_t c = 0; c < group.count; ++c) {
    const WholeRows& rows = group.rows[c];
    const int16_t* pairs = weights.codes + group.first[c];
    const std::byte* codes = rows.codes + i * kBytesPerLoad<kCodec>;
    const std::byte* signs = rows.signs + i * 2;
    const std::byte* ahead = group.ahead[c] + i * kBytesPerLoad<kCodec>;
    const auto add_row = [&]() QUIRE_INLINE {
      PairVec x[kVecs];
      QUIRE_UNROLL
      for (int load = 0; load < kLoads; ++load) {
        LoadValues<kCodec>(codes + load * kBytesPerLoad<kCodec>, signs + load * 2, rows.sign_bytes,
                           x + load * kVecsPerLoad<kCodec>);
      }
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        const PairVec w = SetPair(pairs + h * kSplitTokens);
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) sum[h][v] = AddProducts(w, x[v], sum[h][v]);
      }
      pairs += 2;
      codes += rows.row_bytes;
      signs += 2 * rows.sign_bytes;
    };
    for (uint32_t r = 0; r < kColumnTokens / 2; r += 2) {
      hwy::Prefetch(ahead);
      hwy::Prefetch(ahead + rows.row_bytes);
      ahead += 2 * rows.row_bytes;
      Repeat<2>(add_row);
    }
  }
  AddGroup<kQueries, kVecs>(sum, weights, group.unit, out + i * kChannelsPerLoad<kCodec>,
                            out_stride);
}

/// The same for the last channels, from `begin` on, at most sixteen.
template <int kQueries>
void WeighLast(const WholeGroup& group, const StreamLayout& layout, size_t begin,
               const FixedWeights& weights, float* out, size_t out_stride) {
  constexpr int kVecs = static_cast<int>(kVecsPerSixteen);
  SumVec sum[kQueries][kVecs];
  ClearSums<kQueries, kVecs>(sum);
  for (uint32_t c = 0; c < group.count; ++c) {
    for (size_t r = 0; r < kColumnTokens / 2; ++r) {
      HWY_ALIGN int16_t last[kSixteenPairs];
      StoreLastValues(layout, group.rows[c], r, begin, last);
      for (int h = 0; h < kQueries; ++h) {
        const PairVec w = SetPair(weights.codes + h * kSplitTokens + group.first[c] + 2 * r);
        for (int v = 0; v < kVecs; ++v) {
          sum[h][v] = AddProducts(w, hn::Load(PairTag(), last + v * 2 * kSumLanes), sum[h][v]);
        }
      }
    }
  }
  AddGroup<kQueries, kVecs>(sum, weights, group.unit, out + begin, out_stride);
}

template <Codec kCodec, int kQueries>
void WeighWholeGroup(const WholeGroup& group, const StreamLayout& layout,
                     const FixedWeights& weights, float* out, size_t out_stride) {
  // Beyond four sums g++ 12 keeps some of them in memory.
  constexpr int kLoads = std::max(1, 4 / kQueries / kVecsPerLoad<kCodec>);
  const size_t loadable = LoadableChannels<kCodec>(layout.dim);
  const size_t loads = loadable / kChannelsPerLoad<kCodec>;
  size_t i = 0;
  for (; i + kLoads <= loads; i += kLoads) {
    WeighLoads<kCodec, kQueries, kLoads>(group, i, weights, out, out_stride);
  }
  for (; i < loads; ++i) {
    WeighLoads<kCodec, kQueries, 1>(group, i, weights, out, out_stride);
  }
  for (size_t begin = loadable; begin < layout.dim; begin += 16) {
    WeighLast<kQueries>(group, layout, begin, weights, out, out_stride);
  }
}

/// out += weights * values over all columns, group by group and head by head; at the end the first
/// columns of `next` (or null) are fetched.
template <Codec kCodec>
void StreamWholeValues(const Columns& columns, const StreamView& view, const Columns* next,
                       const FixedWeights& weights, float* out, size_t out_stride) {
  constexpr uint32_t kColumnsPerGroup = kGroupTokens / kColumnTokens;
  const GroupParts parts(view.group);
  uint32_t end = 0;
  for (uint32_t c = 0; c < columns.count; c = end) {
    const uint32_t unit = columns.index[c] / kColumnsPerGroup;
    while (end < columns.count && columns.index[end] / kColumnsPerGroup == unit) ++end;
    for (uint32_t head = 0; head < view.heads; ++head) {
      WholeGroup group{.count = end - c, .unit = unit};
      for (uint32_t j = 0; j < group.count; ++j) {
        group.first[j] = columns.index[c + j] * kColumnTokens;
        group.rows[j] = ValueOfHead(columns, c + j, view, head);
        group.ahead[j] = ValueAhead(columns, c + j, head, view, group.count, next);
      }
      size_t q = size_t{head} * view.group;
      for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
        ForPart(parts.size(part), [&]<int kQueries>() HWY_ATTR {
          WeighWholeGroup<kCodec, kQueries>(group, *view.layout, weights.From(q),
                                            out + q * out_stride, out_stride);
        });
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

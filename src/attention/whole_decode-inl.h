// Single rows over whole-number codes: planes in the order they lie in memory, each fetched some
// planes before it is needed (decode-inl.h says why). Columns of K and tiles of V are taken by twos
// where registers allow, so that they share what they are multiplied with.
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
  const int16_t* codes = nullptr;   // [queries, stride], zeros after the last channel
  const float* units = nullptr;     // [queries]
  const int32_t* starts = nullptr;  // [queries] what sums over codes with kExcess start from
  size_t stride = 0;

  FixedQueries From(size_t query) const {
    return {codes + query * stride, units + query, starts + query, stride};
  }
};

/// Weights in fixed point.
struct FixedWeights {
  static constexpr size_t kGroups = kSplitTokens / kGroupTokens;
  const int16_t* codes = nullptr;   // [queries, kSplitTokens], 0 where there is no column
  const float* units = nullptr;     // [queries, kGroups]
  const int32_t* starts = nullptr;  // [queries, kGroups]

  FixedWeights From(size_t query) const {
    return {codes + query * kSplitTokens, units + query * kGroups, starts + query * kGroups};
  }
};

/// All sums of query vector h become starts[h * stride].
template <int kQueries, int kVecs>
HWY_INLINE void StartSums(const int32_t* starts, size_t stride, SumVec (*sum)[kVecs]) {
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    const SumVec start = hn::Set(SumTag(), starts[h * stride]);
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) sum[h][v] = start;
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

/// Scores of kColumns columns, as many as the accumulators allow: they share the query's numbers.
/// `ahead` are the columns that are read later.
template <Codec kCodec, int kQueries, int kColumns>
void ScoreWholeColumns(const FixedQueries& queries, size_t dim, const std::byte* const* columns,
                       size_t offset_bytes, const uint32_t* index, const std::byte* const* ahead,
                       float* scores) {
  constexpr bool kTiles = kCodec == Codec::kQ25;  // whole ones
  constexpr int kSteps = kTiles ? kTileSteps<kCodec> : 2;
  constexpr size_t kBytes = kTiles ? codec::kPairTileBytes : kSteps * codec::kStepBytes;
  constexpr size_t kStepChannels = 2 * kPairsPerStep<kCodec>;
  SumVec sum[kColumns][kQueries][kVecsPerSixteen];
  const std::byte* codes[kColumns];
  QUIRE_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    StartSums<kQueries, kVecsPerSixteen>(queries.starts, 1, sum[c]);
    codes[c] = columns[c] + offset_bytes;
  }
  size_t at = 0;
  const int16_t* query = queries.codes;
  const auto add_step = [&]<int kStep>() QUIRE_INLINE {
    PairVec k[kColumns][kPairsPerStep<kCodec>][kVecsPerSixteen];
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) LoadPairs<kCodec, kStep>(codes[c] + at, k[c]);
    QUIRE_UNROLL
    for (int p = 0; p < kPairsPerStep<kCodec>; ++p) {
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        const PairVec q = SetPair(query + h * queries.stride + kStep * kStepChannels + 2 * p);
        QUIRE_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          QUIRE_UNROLL
          for (size_t v = 0; v < kVecsPerSixteen; ++v) {
            sum[c][h][v] = AddProducts(q, k[c][p][v], sum[c][h][v]);
          }
        }
      }
    }
  };
  const int16_t* const end = query + dim;
  while (query + (kTiles ? 1 : kSteps * kStepChannels) <= end) {
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      for (size_t line = 0; line < kBytes; line += kLineBytes) hwy::Prefetch(ahead[c] + at + line);
    }
    Repeat<kSteps>(add_step);
    query += kSteps * kStepChannels;
    at += kBytes;
  }
  for (; query < end; query += kStepChannels, at += codec::kStepBytes) {
    add_step.template operator()<0>();
  }
  QUIRE_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    StoreScores<kQueries>(sum[c], queries.units, scores + index[c] * kColumnTokens);
  }
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
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit];
      PlanesAhead(key, value, columns, c, count, head, ahead);
      FetchScales(key, value, columns, c, count, head);
      uint32_t q = head * key.group;
      for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
        ForPart(parts.size(part), [&]<int kQueries>() HWY_ATTR {
          // Pairs of channels need the registers themselves.
          constexpr int kColumns = kCodec == Codec::kQ25 ? 1 : std::max(1, 4 / kQueries);
          const FixedQueries of_part = queries.From(q);
          float* const to = scores + size_t{q} * kSplitTokens;
          uint32_t i = 0;
          for (; i + kColumns <= count; i += kColumns) {
            ScoreWholeColumns<kCodec, kQueries, kColumns>(of_part, key.dim, columns.key + c + i,
                                                          offset, columns.index + c + i, ahead + i,
                                                          to);
          }
          for (; i < count; ++i) {
            ScoreWholeColumns<kCodec, kQueries, 1>(of_part, key.dim, columns.key + c + i, offset,
                                                   columns.index + c + i, ahead + i, to);
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
  const std::byte* codes[kGroupTokens / kColumnTokens];
  const std::byte* ahead[kGroupTokens / kColumnTokens];
  uint32_t unit = 0;  // of the split's
};

/// out += sums times the group's units, for sixteen channels.
template <int kQueries, int kVecs>
HWY_INLINE void AddGroup(const SumVec (*sum)[kVecs], size_t first_vec, const FixedWeights& weights,
                         uint32_t unit, float* out, size_t out_stride) {
  const hn::RebindToFloat<SumTag> df;
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    const auto of_group = hn::Set(df, weights.units[h * FixedWeights::kGroups + unit]);
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerSixteen; ++v) {
      const auto added = hn::ConvertTo(df, sum[h][first_vec + v]);
      float* to = out + h * out_stride + v * kSumLanes;
      hn::Store(hn::MulAdd(added, of_group, hn::Load(df, to)), df, to);
    }
  }
}

/// out += weights * values of a group, for the channels of kTiles tiles from `offset_bytes` into
/// the columns on, as far as there are.
template <Codec kCodec, int kQueries, int kTiles>
HWY_INLINE void WeighTiles(const WholeGroup& group, size_t offset_bytes,
                           const FixedWeights& weights, size_t channels, float* out,
                           size_t out_stride) {
  constexpr int kPanels = kValuesPerCode<kCodec>;
  constexpr int kVecs = kPanels * static_cast<int>(kVecsPerSixteen);
  constexpr size_t kBytes = codec::TileBytes(kCodec, codec::kTileLanes);
  SumVec sum[kTiles][kQueries][kVecs];
  QUIRE_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    StartSums<kQueries, kVecs>(weights.starts + group.unit, FixedWeights::kGroups, sum[i]);
  }
  for (uint32_t c = 0; c < group.count; ++c) {
    const std::byte* tile = group.codes[c] + offset_bytes;
    const std::byte* ahead = group.ahead[c] + offset_bytes;
    const int16_t* pairs = weights.codes + group.first[c];
    QUIRE_UNROLL
    for (size_t line = 0; line < kTiles * kBytes; line += kLineBytes) hwy::Prefetch(ahead + line);
    Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
      constexpr int kTokenPairs = kPairsPerStep<kCodec> / kPanels;
      PairVec x[kTiles][kPairsPerStep<kCodec>][kVecsPerSixteen];
      QUIRE_UNROLL
      for (int i = 0; i < kTiles; ++i) LoadPairs<kCodec, kStep>(tile + i * kBytes, x[i]);
      QUIRE_UNROLL
      for (int p = 0; p < kTokenPairs; ++p) {
        QUIRE_UNROLL
        for (int h = 0; h < kQueries; ++h) {
          const PairVec w = SetPair(pairs + h * kSplitTokens + 2 * (kStep * kTokenPairs + p));
          QUIRE_UNROLL
          for (int i = 0; i < kTiles; ++i) {
            QUIRE_UNROLL
            for (int v = 0; v < kVecs; ++v) {
              const PairVec value = x[i][p * kPanels + v / kVecsPerSixteen][v % kVecsPerSixteen];
              sum[i][h][v] = AddProducts(w, value, sum[i][h][v]);
            }
          }
        }
      }
    });
  }
  QUIRE_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    float* const to = out + i * kPanels * kPanelDims;
    AddGroup<kQueries, kVecs>(sum[i], 0, weights, group.unit, to, out_stride);
    if (kPanels > 1 && channels > (i * kPanels + 1) * kPanelDims) {
      AddGroup<kQueries, kVecs>(sum[i], kVecsPerSixteen, weights, group.unit, to + kPanelDims,
                                out_stride);
    }
  }
}

/// out += weights * values over all columns, group by group and head by head; at the end the first
/// columns of `next` (or null) are fetched.
template <Codec kCodec>
void StreamWholeValues(const Columns& columns, const StreamView& view, const Columns* next,
                       const FixedWeights& weights, float* out, size_t out_stride) {
  constexpr uint32_t kColumnsPerGroup = kGroupTokens / kColumnTokens;
  constexpr size_t kChannels = kValuesPerCode<kCodec> * kPanelDims;
  constexpr size_t kBytes = codec::TileBytes(kCodec, codec::kTileLanes);
  const GroupParts parts(view.group);
  uint32_t end = 0;
  for (uint32_t c = 0; c < columns.count; c = end) {
    WholeGroup group{.unit = columns.index[c] / kColumnsPerGroup};
    while (end < columns.count && columns.index[end] / kColumnsPerGroup == group.unit) {
      group.first[group.count++] = columns.index[end++] * kColumnTokens;
    }
    for (uint32_t head = 0; head < view.heads; ++head) {
      for (uint32_t j = 0; j < group.count; ++j) {
        group.codes[j] = columns.value[c + j] + head * view.head_stride_bytes;
        group.ahead[j] = ValueAhead(columns, c + j, head, view, group.count, next);
      }
      size_t q = size_t{head} * view.group;
      for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
        ForPart(parts.size(part), [&]<int kQueries>() HWY_ATTR {
          constexpr int kTiles = kQueries <= 2 && kValuesPerCode<kCodec> == 1 ? 2 : 1;
          const FixedWeights of_part = weights.From(q);
          float* const to = out + q * out_stride;
          size_t d = 0;
          size_t offset_bytes = 0;
          for (; d + (kTiles - 1) * kChannels < view.dim;
               d += kTiles * kChannels, offset_bytes += kTiles * kBytes) {
            WeighTiles<kCodec, kQueries, kTiles>(group, offset_bytes, of_part, view.dim - d, to + d,
                                                 out_stride);
          }
          if (d < view.dim) {
            WeighTiles<kCodec, kQueries, 1>(group, offset_bytes, of_part, view.dim - d, to + d,
                                            out_stride);
          }
        });
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

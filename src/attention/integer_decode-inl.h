// Single rows over integer codes: columns of K and tiles of V are taken together as far as
// registers allow, so that they share their factors. Planes are fetched some planes before they are
// needed (decode-inl.h says why), with AVX-512 evenly (ahead-inl.h).
#include "attention/ahead-inl.h"
#include "attention/integer-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_INTEGER_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_INTEGER_DECODE_INL_H_
#undef QUIRE_ATTENTION_INTEGER_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_INTEGER_DECODE_INL_H_
#endif

#include <algorithm>

#include "attention/scalar.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Query vectors that share a load of codes.
template <Codec kCodec>
inline constexpr uint32_t kKeySlice = kTilesPerVec == 2 ? 8 : kSliceQueries;
template <Codec kCodec>
inline constexpr uint32_t kValueSlice =
    kTilesPerVec == 2 ? 8 / kValuesPerCode<kCodec> : kSliceQueries;

/// Matrix tiles, where there are some (amx-inl.h); how many query vectors they take at most, and
/// from how many of a KV head on rows that stream use them.
class AmxTiles;
inline constexpr uint32_t kAmxQueriesMax = 16;
inline constexpr uint32_t kAmxQueriesMin = 5;

/// Query vectors in fixed point.
struct FixedQueries {
  // Of those that are taken together, a slice or the rows of a register tile. Pairs of channels,
  // zeros after the last one: [stride / 2, queries, 2]; for tiles [2, queries, stride] bytes.
  const int16_t* codes = nullptr;
  const float* units = nullptr;         // [queries]
  const int32_t* bias_terms = nullptr;  // [queries] -kBias times the sum of the codes
  size_t stride = 0;

  FixedQueries From(size_t query) const {
    return {codes + query * stride, units + query, bias_terms + query, stride};
  }
};

/// Weights in fixed point.
struct FixedWeights {
  static constexpr size_t kGroups = kSplitTokens / kGroupTokens;
  const int16_t* codes = nullptr;       // [queries, kSplitTokens], 0 where there is no column
  const float* units = nullptr;         // [queries, kGroups]
  const int32_t* bias_terms = nullptr;  // [queries, kGroups]

  FixedWeights From(size_t query) const {
    return {codes + query * kSplitTokens, units + query * kGroups, bias_terms + query * kGroups};
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

/// Scores of one column: sums times the query's unit.
HWY_INLINE void StoreScores(const SumVec* sum, float query_unit, float* scores) {
  const hn::RebindToFloat<SumTag> df;
  const auto unit = hn::Set(df, query_unit);
  QUIRE_UNROLL
  for (size_t v = 0; v < kVecsPerSixteen; ++v) {
    hn::Store(hn::Mul(hn::ConvertTo(df, sum[v]), unit), df, scores + v * kSumLanes);
  }
}

/// Columns of K that are taken together.
template <Codec kCodec>
constexpr int ColumnsTogether(int queries) {
  if (kTilesPerVec == 2) return queries > 4 ? 2 : 4;
  // Pairs of channels need the registers themselves.
  return kHasPairs<kCodec> ? 1 : std::max(1, 4 / queries);
}

/// Tiles of V that are taken together.
template <Codec kCodec>
constexpr int TilesTogether(int queries) {
  const int panels = kValuesPerCode<kCodec>;
  if (kTilesPerVec == 2) return std::clamp(16 / (queries * panels) / 2 * 2, 2, 8);
  return queries <= 2 && panels == 1 ? 2 : 1;
}

/// Scores of kColumns columns, of which `count` are to be kept; the others may be any. `ahead` are
/// the columns that are read later, `next_bytes` further those that are read next.
template <Codec kCodec, int kQueries, int kColumns>
void ScoreIntegerColumns(const FixedQueries& queries, size_t dim, const std::byte* const* columns,
                         size_t offset_bytes, size_t next_at, uint32_t count, const uint32_t* index,
                         const std::byte* const* ahead, float* scores, LinesAhead* lines) {
  static_assert(kColumns % kTilesPerVec == 0);
  constexpr bool kTiles = kHasPairs<kCodec>;  // whole ones
  constexpr int kSteps = kTiles ? kTileSteps<kCodec> : 2;
  constexpr size_t kBytes = kTiles ? codec::kPairTileBytes : kSteps * codec::kStepBytes;
  constexpr size_t kStepChannels = 2 * kPairsPerStep<kCodec>;
  constexpr int kVecs = kColumns / kTilesPerVec;
  SumVec sum[kVecs][kQueries][kVecsPerStep];
  const std::byte* codes[kColumns];
  QUIRE_UNROLL
  for (int i = 0; i < kVecs; ++i) ClearSums<kQueries, kVecsPerStep>(sum[i]);
  QUIRE_UNROLL
  for (int c = 0; c < kColumns; ++c) codes[c] = columns[c] + offset_bytes;
  size_t at = 0;
  const int16_t* query = queries.codes;
  constexpr size_t kStepNumbers = kStepChannels * kQueries;
  const auto add_step = [&]<int kStep>() QUIRE_INLINE {
    PairVec k[kVecs][kPairsPerStep<kCodec>][kVecsPerStep];
    QUIRE_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      LoadPairs<kCodec, kStep, kTilesPerVec, true>(codes + i * kTilesPerVec, at, k[i]);
    }
    QUIRE_UNROLL
    for (int p = 0; p < kPairsPerStep<kCodec>; ++p) {
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        const PairVec q = SetPair(query + kStep * kStepNumbers + 2 * (p * kQueries + h));
        QUIRE_UNROLL
        for (int i = 0; i < kVecs; ++i) {
          QUIRE_UNROLL
          for (int v = 0; v < kVecsPerStep; ++v) {
            sum[i][h][v] = AddProducts(q, k[i][p][v], sum[i][h][v]);
          }
        }
      }
    }
  };
  const int16_t* const end = query + dim * kQueries;
  while (query + (kTiles ? 1 : kSteps * kStepNumbers) <= end) {
    lines->Fetch(kColumns * DivUp(kBytes, kLineBytes));
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      for (size_t line = 0; line < kBytes; line += kLineBytes) {
        if constexpr (!kFetchesAhead) FetchFar(ahead[c] + at + line);
        FetchNear(codes[c] + next_at + line);
      }
    }
    Repeat<kSteps>(add_step);
    query += kSteps * kStepNumbers;
    at += kBytes;
    next_at += kBytes;
    asm("" : "+r"(next_at));
  }
  for (; query < end; query += kStepNumbers, at += codec::kStepBytes) {
    add_step.template operator()<0>();
  }
  QUIRE_UNROLL
  for (int i = 0; i < kVecs; ++i) {
    Repeat<kTilesPerVec>([&]<int kTile>() QUIRE_INLINE {
      const uint32_t c = i * kTilesPerVec + kTile;
      if (c >= count) return;
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        SumVec lanes[kVecsPerSixteen];
        TileLanes<kCodec, kTile>(sum[i][h], queries.bias_terms[h], lanes);
        StoreScores(lanes, queries.units[h], scores + h * kSplitTokens + index[c] * kColumnTokens);
      }
    });
  }
}

/// scores[q][column] for every query vector q of the item and every column, without the scales.
template <Codec kCodec>
void StreamIntegerScores(const FixedQueries& queries, const StreamView& key,
                         const StreamView& value, const Columns& columns, float* scores, AmxTiles*,
                         LinesAhead* lines) {
  const uint32_t streams = std::max(kStreams, key.block_columns);
  constexpr uint32_t kSlice = kKeySlice<kCodec>;
  const GroupSlices slices(key.group, kSlice);
  for (uint32_t c = 0; c < columns.count; c += streams) {
    const uint32_t count = std::min(streams, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit] = {};
      if constexpr (!kFetchesAhead) PlanesAhead(key, value, columns, c, count, head, ahead);
      FetchKeyScales(key, columns, c, count, head);
      uint32_t q = head * key.group;
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        ForSlice<kSlice>(slices.size(slice), [&]<int kQueries>() HWY_ATTR {
          constexpr uint32_t kColumns = ColumnsTogether<kCodec>(kQueries);
          for (uint32_t i = 0; i < count; i += kColumns) {
            const std::byte* codes[kColumns];
            const std::byte* fetched[kColumns];
            for (uint32_t j = 0; j < kColumns; ++j) {
              const uint32_t column = std::min(i + j, count - 1);
              codes[j] = columns.key[c + column];
              fetched[j] = ahead[column];
            }
            ScoreIntegerColumns<kCodec, kQueries, kColumns>(
                queries.From(q), key.dim, codes, offset, key.head_stride_bytes,
                std::min(kColumns, count - i), columns.index + c + i, fetched,
                scores + size_t{q} * kSplitTokens, lines);
          }
        });
      }
    }
  }
}

/// The bytes that are read some planes after the plane of column c at `head`: the same column of a
/// later head, the column `count` further, or the first columns of `next` (or null).
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

/// The columns of one group of tokens, of one head.
struct IntegerGroup {
  uint32_t count = 0;
  uint32_t first[kGroupTokens / kColumnTokens];  // token of the split
  const std::byte* codes[kGroupTokens / kColumnTokens];
  const std::byte* ahead[kGroupTokens / kColumnTokens];
  const std::byte* next[kGroupTokens / kColumnTokens];  // read after the column
  uint32_t unit = 0;                                    // of the split's
};

/// out += sums times the group's unit, for sixteen channels.
HWY_INLINE void AddGroup(const SumVec* sum, float group_unit, float* out) {
  const hn::RebindToFloat<SumTag> df;
  const auto unit = hn::Set(df, group_unit);
  QUIRE_UNROLL
  for (size_t v = 0; v < kVecsPerSixteen; ++v) {
    float* const to = out + v * kSumLanes;
    hn::Store(hn::MulAdd(hn::ConvertTo(df, sum[v]), unit, hn::Load(df, to)), df, to);
  }
}

/// out += weights * values of a group, for the channels of kTiles tiles, `tile_step` bytes apart,
/// from `offset_bytes` into the columns on, as far as there are `channels`.
template <Codec kCodec, int kQueries, int kTiles>
HWY_INLINE void WeighTiles(const IntegerGroup& group, size_t offset_bytes, size_t tile_step,
                           const FixedWeights& weights, size_t channels, float* out,
                           size_t out_stride, LinesAhead* lines) {
  static_assert(kTiles % kTilesPerVec == 0);
  constexpr int kPanels = kValuesPerCode<kCodec>;
  constexpr int kVecs = kTiles / kTilesPerVec;
  constexpr int kSums = kPanels * kVecsPerStep;
  constexpr size_t kBytes = codec::TileBytes(kCodec, codec::kTileLanes);
  SumVec sum[kVecs][kQueries][kSums];
  QUIRE_UNROLL
  for (int i = 0; i < kVecs; ++i) ClearSums<kQueries, kSums>(sum[i]);
  for (uint32_t c = 0; c < group.count; ++c) {
    const std::byte* tiles[kTiles];
    QUIRE_UNROLL
    for (int i = 0; i < kTiles; ++i) tiles[i] = group.codes[c] + offset_bytes + i * tile_step;
    const int16_t* pairs = weights.codes + group.first[c];
    lines->Fetch(DivUp(kTiles * kBytes, kLineBytes));
    QUIRE_UNROLL
    for (size_t line = 0; line < kTiles * kBytes; line += kLineBytes) {
      if constexpr (!kFetchesAhead) FetchFar(group.ahead[c] + offset_bytes + line);
      FetchNear(group.next[c] + offset_bytes + line);
    }
    Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
      constexpr int kTokenPairs = kPairsPerStep<kCodec> / kPanels;
      PairVec x[kVecs][kPairsPerStep<kCodec>][kVecsPerStep];
      QUIRE_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        LoadPairs<kCodec, kStep, kTilesPerVec, true>(tiles + i * kTilesPerVec, 0, x[i]);
      }
      QUIRE_UNROLL
      for (int p = 0; p < kTokenPairs; ++p) {
        QUIRE_UNROLL
        for (int h = 0; h < kQueries; ++h) {
          const PairVec w = SetPair(pairs + h * kSplitTokens + 2 * (kStep * kTokenPairs + p));
          QUIRE_UNROLL
          for (int i = 0; i < kVecs; ++i) {
            QUIRE_UNROLL
            for (int v = 0; v < kSums; ++v) {
              const PairVec value = x[i][p * kPanels + v / kVecsPerStep][v % kVecsPerStep];
              sum[i][h][v] = AddProducts(w, value, sum[i][h][v]);
            }
          }
        }
      }
    });
  }
  QUIRE_UNROLL
  for (int i = 0; i < kVecs; ++i) {
    Repeat<kTilesPerVec>([&]<int kTile>() QUIRE_INLINE {
      QUIRE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const size_t channel = ((i * kTilesPerVec + kTile) * kPanels + p) * kPanelDims;
        if (channel >= channels) continue;
        QUIRE_UNROLL
        for (int h = 0; h < kQueries; ++h) {
          SumVec lanes[kVecsPerSixteen];
          const size_t unit = h * FixedWeights::kGroups + group.unit;
          TileLanes<kCodec, kTile>(sum[i][h] + p * kVecsPerStep, weights.bias_terms[unit], lanes);
          AddGroup(lanes, weights.units[unit], out + h * out_stride + channel);
        }
      }
    });
  }
}

/// out += weights * values over all columns, group by group and head by head; at the end the first
/// columns of `next` (or null) are fetched.
template <Codec kCodec>
void StreamIntegerValues(const Columns& columns, const StreamView&, const StreamView& view,
                         const Columns* next, const FixedWeights& weights, float* out,
                         size_t out_stride, AmxTiles*, LinesAhead* lines) {
  constexpr size_t kChannels = kValuesPerCode<kCodec> * kPanelDims;
  constexpr size_t kBytes = codec::TileBytes(kCodec, codec::kTileLanes);
  constexpr uint32_t kSlice = kValueSlice<kCodec>;
  const GroupSlices slices(view.group, kSlice);
  uint32_t end = 0;
  for (uint32_t c = 0; c < columns.count; c = end) {
    IntegerGroup group{.unit = columns.index[c] / kColumnsPerGroup};
    while (end < columns.count && columns.index[end] / kColumnsPerGroup == group.unit) {
      group.first[group.count++] = columns.index[end++] * kColumnTokens;
    }
    for (uint32_t head = 0; head < view.heads; ++head) {
      for (uint32_t j = 0; j < group.count; ++j) {
        group.codes[j] = columns.value[c + j] + head * view.head_stride_bytes;
        if constexpr (!kFetchesAhead) {
          group.ahead[j] = ValueAhead(columns, c + j, head, view, group.count, next);
        }
        group.next[j] = j + 1 < group.count
                            ? columns.value[c + j + 1] + head * view.head_stride_bytes
                            : columns.value[c] + (head + 1) * view.head_stride_bytes;
      }
      size_t q = size_t{head} * view.group;
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        ForSlice<kSlice>(slices.size(slice), [&]<int kQueries>() HWY_ATTR {
          constexpr int kTiles = TilesTogether<kCodec>(kQueries);
          const FixedWeights of_slice = weights.From(q);
          float* const to = out + q * out_stride;
          size_t d = 0;
          size_t offset_bytes = 0;
          for (; d + (kTiles - 1) * kChannels < view.dim;
               d += kTiles * kChannels, offset_bytes += kTiles * kBytes) {
            WeighTiles<kCodec, kQueries, kTiles>(group, offset_bytes, kBytes, of_slice,
                                                 view.dim - d, to + d, out_stride, lines);
          }
          constexpr int kFew = kTilesPerVec;
          for (; d < view.dim; d += kFew * kChannels, offset_bytes += kFew * kBytes) {
            // Of two tiles the second may be missing.
            const size_t step = d + (kFew - 1) * kChannels < view.dim ? kBytes : 0;
            WeighTiles<kCodec, kQueries, kFew>(group, offset_bytes, step, of_slice, view.dim - d,
                                               to + d, out_stride, lines);
          }
        });
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Kernels that read K and V once, straight from their blocks: for single rows, where memory is the
// limit. With few registers they leave prefetching to the hardware and read as it likes best: a few
// long runs at once (the planes of all KV heads of neighbouring blocks), each run strictly forward.
// On Zen 3 that reaches the speed of a plain stream for K and 85 to 90 % of it for V; one plane of
// 4 KiB after the other reached 45 %, line-by-line software prefetch on top of it 55 %. Fetching so
// much as the first line of the planes that come next costs 15 %.
#include "attention/encoded-inl.h"
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_DECODE_INL_H_
#undef QUIRE_ATTENTION_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_DECODE_INL_H_
#endif

#include <algorithm>

#include "codec/planes.h"
#include "codec/scalar.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Runs that are read at once.
inline constexpr uint32_t kStreams = 4;
/// Bytes of K that one run gives before it is the next one's turn.
inline constexpr size_t kTurnBytes = 1024;
/// Channels of K between two checks for the end of a turn. The fewer instructions a byte takes, the
/// further ahead of them a core finds the loads of the next run.
inline constexpr size_t kTurnRows = 8;
/// Tokens of V that one run gives before it is the next one's turn: their weights stay in
/// registers.
inline constexpr uint32_t kTurnTokens = 2;
/// Where 32 registers hold the sums of a whole plane, planes are computed one after the other and
/// fetched line by line beforehand. On a Zen 5 core that streams 38 GB/s this reads f16 at 72 % of
/// that and f32 at 92 %; interleaved runs, which leave fetching to the hardware, at 54 %.
inline constexpr bool kFetchesAhead = kVecLanes >= 16;
inline constexpr size_t kLineBytes = 64;
inline constexpr uint32_t kPlanesAhead = 4;
/// Query vectors that share a load; a larger group is cut into equal parts of at most as many.
inline constexpr uint32_t kPartQueries = 4;
/// Whether planes are read one after the other, each fetched beforehand: also for groups of several
/// parts, where arithmetic is the limit.
constexpr bool FetchesAhead(uint32_t group) { return kFetchesAhead || group > kPartQueries; }
/// Accumulators of a register tile.
inline constexpr size_t kTileVecs = kVecLanes >= 16 ? 16 : 8;

/// One stream (K or V) as the kernels of an item see it.
struct StreamView {
  const StreamLayout* layout = nullptr;
  uint32_t heads = 0;  // KV heads of the item
  uint32_t group = 0;  // query vectors per KV head
  size_t dim = 0;
  size_t row_bytes = 0;                // K: from one channel's tokens to the next channel's
  size_t head_stride_bytes = 0;        // from one head's plane to the next
  size_t column_bytes = 0;             // codes of one head's column
  size_t token_bytes = 0;              // V: from one token's codes to the next token's
  uint32_t block_columns = 0;          // columns of one block
  size_t scale_head_stride_bytes = 0;  // 0: the codec has no scales
};

/// Bytes of a code that is no whole number.
constexpr size_t CodeBytes(Codec codec) { return IsIdentity(codec) ? codec::ValueBytes(codec) : 1; }

/// Where a head's column of codes begins in its plane: the tokens from `in_block` on.
inline size_t ColumnOffset(const StreamLayout& stream, uint32_t in_block) {
  if (codec::HasWholeCodes(stream.codec)) {
    return in_block / kColumnTokens * codec::ColumnBytes(stream.codec, stream.inner, stream.dim);
  }
  const size_t codes = stream.inner == InnerAxis::kDim ? size_t{in_block} * stream.dim : in_block;
  return codes * CodeBytes(stream.codec);
}

/// The group in parts: the first `longer` have one query vector more than the others.
struct GroupParts {
  explicit GroupParts(uint32_t group)
      : count(DivUp(group, kPartQueries)), queries(group / count), longer(group % count) {}
  uint32_t size(uint32_t part) const { return queries + (part < longer ? 1 : 0); }

  uint32_t count;
  uint32_t queries;
  uint32_t longer;
};

/// f<kQueries>() for a part of so many query vectors.
template <class F>
HWY_INLINE void ForPart(uint32_t queries, const F& f) {
  switch (queries) {
    case 1: f.template operator()<1>(); break;
    case 2: f.template operator()<2>(); break;
    case 3: f.template operator()<3>(); break;
    default: f.template operator()<4>(); break;
  }
}

/// Columns of K that one kernel call reads, as many as the accumulators allow.
constexpr uint32_t ColumnsPerTile(uint32_t queries) {
  return std::max<uint32_t>(1,
                            std::min<uint32_t>(kStreams, kTileVecs / (queries * kVecsPerColumn)));
}

/// scores[h][column] = Chain over channels [begin, end), continued from what scores holds unless
/// begin is 0. Query vector h at query + h * dim; columns' scores kColumnTokens apart as `index`
/// says.
///
/// With kFetch `ahead` are the columns that come next, to be fetched while these are computed.
template <class Values, int kQueries, int kColumns, bool kFetch>
void ScoreTile(const float* query, size_t dim, size_t begin, size_t end,
               const std::byte* const* columns, size_t offset_bytes, size_t row_bytes,
               const uint32_t* index, float* scores, const std::byte* const* ahead) {
  constexpr size_t kVecs = kColumns * kVecsPerColumn;
  const Tag d;
  const std::byte* key[kColumns];
  Vec sum[kQueries][kVecs];
  QUIRE_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    key[c] = columns[c] + offset_bytes;
  }
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      const float* from = scores + h * kSplitTokens + index[v / kVecsPerColumn] * kColumnTokens;
      sum[h][v] = begin == 0 ? hn::Zero(d) : hn::Load(d, from + (v % kVecsPerColumn) * kVecLanes);
    }
  }
  const auto add_channel = [&](size_t i) QUIRE_INLINE {
    Vec k[kVecs];
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      k[v] = Values::Load(d, key[v / kVecsPerColumn] + i * row_bytes +
                                 v % kVecsPerColumn * kVecLanes * Values::kBytes);
    }
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) {
      const Vec q = hn::Set(d, query[h * dim + i]);
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecs; ++v) sum[h][v] = hn::MulAdd(q, k[v], sum[h][v]);
    }
  };
  constexpr size_t kRowsPerLine = kLineBytes / (kColumnTokens * Values::kBytes);
  constexpr size_t kRows = kFetch ? kRowsPerLine : kTurnRows;
  size_t i = begin;
  for (; i + kRows <= end; i += kRows) {
    if constexpr (kFetch) {
      QUIRE_UNROLL
      for (int c = 0; c < kColumns; ++c) hwy::Prefetch(ahead[c] + i * row_bytes);
    }
    QUIRE_UNROLL
    for (size_t row = 0; row < kRows; ++row) add_channel(i + row);
  }
  for (; i < end; ++i) add_channel(i);
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      float* to = scores + h * kSplitTokens + index[v / kVecsPerColumn] * kColumnTokens;
      hn::Store(sum[h][v], d, to + (v % kVecsPerColumn) * kVecLanes);
    }
  }
}

/// `count` columns from `columns` on, one turn of each, for one part of a group.
template <class Values, int kQueries, bool kFetch>
void ScoreTurn(const float* query, size_t dim, size_t begin, size_t end,
               const std::byte* const* columns, uint32_t count, size_t offset_bytes,
               size_t row_bytes, const uint32_t* index, float* scores,
               const std::byte* const* ahead) {
  constexpr int kColumns = ColumnsPerTile(kQueries);
  uint32_t c = 0;
  for (; c + kColumns <= count; c += kColumns) {
    ScoreTile<Values, kQueries, kColumns, kFetch>(query, dim, begin, end, columns + c, offset_bytes,
                                                  row_bytes, index + c, scores, ahead + c);
  }
  for (; c < count; ++c) {
    ScoreTile<Values, kQueries, 1, kFetch>(query, dim, begin, end, columns + c, offset_bytes,
                                           row_bytes, index + c, scores, ahead + c);
  }
}

/// Planes that are read after those of columns [c, c + count) at `head`: the same columns of the
/// next head, the next columns of the first head, or the first planes of V.
inline void PlanesAhead(const StreamView& key, const StreamView& value, const Columns& columns,
                        uint32_t c, uint32_t count, uint32_t head, const std::byte** ahead) {
  for (uint32_t i = 0; i < count; ++i) {
    if (head + 1 < key.heads) {
      ahead[i] = columns.key[c + i] + (head + 1) * key.head_stride_bytes;
    } else if (c + count + i < columns.count) {
      ahead[i] = columns.key[c + count + i];
    } else {
      ahead[i] = columns.value[0] + std::min(i, value.heads - 1) * value.head_stride_bytes;
    }
  }
}

/// Fetches the scales of planes that are being read: they are wanted at the end of the split.
inline void FetchScales(const StreamView& key, const StreamView& value, const Columns& columns,
                        uint32_t c, uint32_t count, uint32_t head) {
  for (uint32_t i = c; i < c + count; ++i) {
    if (key.scale_head_stride_bytes != 0) {
      hwy::Prefetch(columns.key_scale[i] + head * key.scale_head_stride_bytes);
    }
    if (value.scale_head_stride_bytes != 0) {
      hwy::Prefetch(columns.value_scale[i] + head * value.scale_head_stride_bytes);
    }
  }
}

/// scores[q][column] for every query vector q of the item and every column.
template <class Values>
void StreamScores(const float* query, const StreamView& key, const StreamView& value,
                  const Columns& columns, float* scores) {
  const bool fetches = FetchesAhead(key.group);
  const size_t turn_dims = fetches ? key.dim : kTurnBytes / (kColumnTokens * Values::kBytes);
  const uint32_t streams = std::max(kStreams, key.block_columns);
  const GroupParts parts(key.group);
  for (uint32_t c = 0; c < columns.count; c += streams) {
    const uint32_t count = std::min(streams, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit];
      if (fetches) {
        PlanesAhead(key, value, columns, c, count, head, ahead);
        FetchScales(key, value, columns, c, count, head);
      }
      for (size_t begin = 0; begin < key.dim; begin += turn_dims) {
        const size_t end = std::min(key.dim, begin + turn_dims);
        uint32_t q = head * key.group;
        for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
          const auto turn = [&]<int kQueries>() HWY_ATTR {
            const auto score = fetches && part == 0 ? ScoreTurn<Values, kQueries, true>
                                                    : ScoreTurn<Values, kQueries, false>;
            score(query + q * key.dim, key.dim, begin, end, columns.key + c, count, offset,
                  key.row_bytes, columns.index + c, scores + size_t{q} * kSplitTokens, ahead);
          };
          ForPart(parts.size(part), turn);
        }
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

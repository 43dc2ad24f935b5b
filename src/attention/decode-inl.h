// Kernels that read K and V once, straight from their blocks: for single rows, where memory is the
// limit. With few registers they leave prefetching to the hardware and read in its best order: a
// few long runs at once (the planes of all KV heads of neighbouring blocks), each run strictly
// forward. On Zen 3 that reaches the speed of a plain stream for K and 85 to 90 % of it for V; one
// plane of 4 KiB after the other reached 45 %, line-by-line software prefetch on top of it 55 %.
// Fetching so much as the first line of the planes that come next costs 15 %.
#include "attention/tile-inl.h"
#include "codec/formats/fp8-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_DECODE_INL_H_
#undef QUIRE_ATTENTION_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_DECODE_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "codec/planes.h"
#include "codec/scalar.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Runs that are read at once.
inline constexpr uint32_t kStreams = 4;
/// Bytes of K that are read from one run before the next run.
inline constexpr size_t kTurnBytes = 1024;
/// Channels of K between two checks for a change of run. The fewer instructions a byte takes, the
/// further ahead a core finds the loads of the next run.
inline constexpr size_t kTurnRows = 8;
/// Tokens of V that are read from one run before the next run: their weights stay in registers.
inline constexpr uint32_t kTurnTokens = 2;
/// Where 32 registers hold the sums of a whole plane, planes are computed in the order they lie in
/// memory and fetched line by line beforehand. On an Intel core that streams 13 GB/s this reads f16
/// at 80 % of that; four blocks at once, fetched in one step, at 66 %, not fetched at 54 %;
/// interleaved runs, which leave it to the hardware, at 58 %.
inline constexpr bool kFetchesAhead = kVecLanes >= 16;
inline constexpr size_t kLineBytes = 64;
/// Planes that are fetched at once, a line of each in turn: a core gets more from four pages than
/// from one.
inline constexpr uint32_t kPlanesAtOnce = 4;
/// Of planes read in order, the number between the plane that is read and the one that is fetched:
/// into the second-level cache, where the first-level one gets the bytes kNearBytes ahead of the
/// reads.
inline constexpr uint32_t kPlanesAhead = kFetchesAhead ? 2 * kPlanesAtOnce : kPlanesAtOnce;
inline constexpr size_t kNearBytes = 1024;

/// How a core fetches planes that are read in order.
enum class Fetches {
  kNothing,
  kInTurn,   // of kPlanesAtOnce planes in turn, and what is near of those that are read
  kInOrder,  // as they lie in memory, nothing near
};

/// Whether kInOrder is the faster one: on Zen 4, with two planes of K at once, by 7 to 17 %
/// (docs/lab/attention.md). Of its family only Zen 4 has AVX-512.
inline bool IsZen4() {
#if defined(__x86_64__)
  static const bool is_of_family = __builtin_cpu_is("amdfam19h") != 0;
  return kFetchesAhead && is_of_family;
#else
  return false;
#endif
}

/// Query vectors that share a load; a larger group is cut into equal slices of at most as many.
inline constexpr uint32_t kSliceQueries = 4;
/// Whether planes are read one after the other, each fetched beforehand: also for groups of several
/// slices, where arithmetic is the limit.
constexpr bool FetchesAhead(uint32_t group) { return kFetchesAhead || group > kSliceQueries; }
/// Accumulators of a register tile.
inline constexpr size_t kTileVecs = kVecLanes >= 16 ? 16 : 8;

/// Fetches a line that is wanted some planes later, or soon.
HWY_INLINE void FetchFar(const std::byte* line) {
#if HWY_TARGET <= HWY_AVX3
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
#else
  hwy::Prefetch(line);
#endif
}
HWY_INLINE void FetchNear(const std::byte* line) {
  if constexpr (kFetchesAhead) hwy::Prefetch(line);
}

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

/// What is fetched evenly while a split is computed (ahead-inl.h).
class LinesAhead;

/// Bytes of a code that is no integer.
constexpr size_t CodeBytes(Codec codec) { return IsIdentity(codec) ? codec::ValueBytes(codec) : 1; }

/// Where a head's column of codes begins in its plane: the tokens from `in_block` on.
inline size_t ColumnOffset(const StreamLayout& stream, uint32_t in_block) {
  if (codec::HasIntegerCodes(stream.codec)) {
    return in_block / kColumnTokens * codec::ColumnBytes(stream.codec, stream.inner, stream.dim);
  }
  const size_t codes = stream.inner == InnerAxis::kDim ? size_t{in_block} * stream.dim : in_block;
  return codes * CodeBytes(stream.codec);
}

/// The group in slices of at most `queries_max`: the first `longer` have one query vector more than
/// the others.
struct GroupSlices {
  explicit GroupSlices(uint32_t group, uint32_t queries_max = kSliceQueries)
      : count(DivUp(group, queries_max)), queries(group / count), longer(group % count) {}
  uint32_t size(uint32_t slice) const { return queries + (slice < longer ? 1 : 0); }

  uint32_t count;
  uint32_t queries;
  uint32_t longer;
};

/// f<kQueries>() for a slice of so many query vectors.
template <uint32_t kMax = kSliceQueries, class F>
HWY_INLINE void ForSlice(uint32_t queries, const F& f) {
  if constexpr (kMax > 1) {
    if (queries < kMax) return ForSlice<kMax - 1>(queries, f);
  }
  f.template operator()<kMax>();
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
      for (int c = 0; c < kColumns; ++c) FetchFar(ahead[c] + i * row_bytes);
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

/// `count` columns from `columns` on, a part of each alternately, for one slice of a group.
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

/// Plane `p` in the order they lie in memory: K of all columns, each with all heads, V of all
/// columns, K of `next` (or null). Behind the last one: any.
inline const std::byte* PlaneInOrder(const StreamView& key, const StreamView& value,
                                     const Columns& columns, const Columns* next, uint32_t p) {
  if (p < columns.count * key.heads) {
    return columns.key[p / key.heads] + p % key.heads * key.head_stride_bytes;
  }
  p -= columns.count * key.heads;
  if (p < columns.count * value.heads) {
    return columns.value[p / value.heads] + p % value.heads * value.head_stride_bytes;
  }
  p -= columns.count * value.heads;
  if (next != nullptr && p < next->count * key.heads) {
    return next->key[p / key.heads] + p % key.heads * key.head_stride_bytes;
  }
  return columns.key[0];
}

/// How far ahead planes are fetched in the order they lie in memory while kStreams columns of all
/// heads are read in another: further than any plane's places in the two orders are apart.
constexpr uint32_t PlanesAheadInOrder(uint32_t heads) { return kStreams * (heads + 1); }

/// Bytes side by side that a core fetches ahead by itself once it sees them read forward.
inline constexpr uint64_t kPageBytes = 4096;

/// The planes that one turn fetches, kStreams of them, each in a page of its own, forward,
/// also where several planes share one. (4-bit codes, head_dim 128: 5 % of decode.)
inline uint32_t PlaneOfTurn(uint64_t plane_bytes, uint32_t turn, uint32_t i) {
  const auto per_page =
      static_cast<uint32_t>(std::bit_floor(std::max<uint64_t>(1, kPageBytes / plane_bytes)));
  return (turn / per_page * kStreams + i) * per_page + turn % per_page;
}

/// Planes that are fetched while those of columns [c, c + count) at `head` are read: the same
/// columns of the next head, the next columns of the first head, or the first planes of V. Where
/// fetching goes far, planes in the order they lie in memory, whatever the order they are read in,
/// and so far ahead that each is fetched before it is read.
inline void PlanesAhead(const StreamView& key, const StreamView& value, const Columns& columns,
                        uint32_t c, uint32_t count, uint32_t head, const std::byte** ahead) {
  const bool in_order = kFetchesAhead && key.block_columns == 1;
  for (uint32_t i = 0; i < count; ++i) {
    if (in_order) {
      const uint32_t p =
          count == kStreams ? PlaneOfTurn(key.head_stride_bytes, c / kStreams * key.heads + head, i)
                            : c * key.heads + head * count + i;
      ahead[i] = PlaneInOrder(key, value, columns, nullptr, p + PlanesAheadInOrder(key.heads));
    } else if (head + 1 < key.heads) {
      ahead[i] = columns.key[c + i] + (head + 1) * key.head_stride_bytes;
    } else if (c + count + i < columns.count) {
      ahead[i] = columns.key[c + count + i];
    } else {
      ahead[i] = columns.value[0] + std::min(i, value.heads - 1) * value.head_stride_bytes;
    }
  }
}

/// Fetches the scales of planes of K that are being read: they are wanted at the end of the split.
inline void FetchKeyScales(const StreamView& key, const Columns& columns, uint32_t c,
                           uint32_t count, uint32_t head) {
  if (key.scale_head_stride_bytes == 0) return;
  for (uint32_t i = c; i < c + count; ++i) {
    hwy::Prefetch(columns.key_scale[i] + head * key.scale_head_stride_bytes);
  }
}

/// As ScoreTile, of kHeads heads of one column whose planes are neighbours; a column is one vector.
template <class Values, int kQueries, int kHeads, Fetches kFetches>
void ScoreHeads(const float* query, const StreamView& key, const std::byte* plane, float* scores,
                const std::byte* const* ahead) {
  const Tag d;
  const std::byte* keys[kHeads];
  const float* of_head[kHeads];
  Vec sum[kHeads][kQueries];
  QUIRE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    keys[i] = plane + i * key.head_stride_bytes;
    of_head[i] = query + i * key.group * key.dim;
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) sum[i][h] = hn::Zero(d);
  }
  const auto add_channel = [&](size_t channel) QUIRE_INLINE {
    QUIRE_UNROLL
    for (int i = 0; i < kHeads; ++i) {
      const Vec k = Values::Load(d, keys[i] + channel * key.row_bytes);
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        sum[i][h] = hn::MulAdd(hn::Set(d, of_head[i][h * key.dim + channel]), k, sum[i][h]);
      }
    }
  };
  constexpr size_t kRows = kLineBytes / (kColumnTokens * Values::kBytes);
  size_t channel = 0;
  for (; channel + kRows <= key.dim; channel += kRows) {
    if constexpr (kFetches == Fetches::kInOrder) {
      const size_t at = channel * key.row_bytes * kHeads;
      QUIRE_UNROLL
      for (int i = 0; i < kHeads; ++i) FetchFar(ahead[0] + at + i * kLineBytes);
    }
    if constexpr (kFetches == Fetches::kInTurn) {
      const size_t at = channel * key.row_bytes;
      QUIRE_UNROLL
      for (int i = 0; i < kHeads; ++i) FetchFar(ahead[i] + at);
      QUIRE_UNROLL
      for (int i = 0; i < kHeads; ++i) FetchNear(keys[i] + at + kNearBytes);
    }
    QUIRE_UNROLL
    for (size_t row = 0; row < kRows; ++row) add_channel(channel + row);
  }
  for (; channel < key.dim; ++channel) add_channel(channel);
  QUIRE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) {
      hn::Store(sum[i][h], d, scores + (i * size_t{key.group} + h) * kSplitTokens);
    }
  }
}

/// As ScoreHeads, of two heads of two columns: they share each load of a query's channel.
template <class Values, int kQueries>
void ScorePairs(const float* query, const StreamView& key, const std::byte* const* planes,
                float* const* scores, const std::byte* const* ahead) {
  constexpr int kHeads = 2;
  constexpr int kColumns = 2;
  const Tag d;
  const std::byte* keys[kHeads][kColumns];
  Vec sum[kHeads][kQueries][kColumns];
  QUIRE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      keys[i][c] = planes[c] + i * key.head_stride_bytes;
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) sum[i][h][c] = hn::Zero(d);
    }
  }
  const auto add_channel = [&](size_t channel) QUIRE_INLINE {
    QUIRE_UNROLL
    for (int i = 0; i < kHeads; ++i) {
      const float* const of_head = query + i * key.group * key.dim + channel;
      Vec k[kColumns];
      QUIRE_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        k[c] = Values::Load(d, keys[i][c] + channel * key.row_bytes);
      }
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) {
        const Vec q = hn::Set(d, of_head[h * key.dim]);
        QUIRE_UNROLL
        for (int c = 0; c < kColumns; ++c) sum[i][h][c] = hn::MulAdd(q, k[c], sum[i][h][c]);
      }
    }
  };
  constexpr size_t kRows = kLineBytes / (kColumnTokens * Values::kBytes);
  size_t channel = 0;
  for (; channel + kRows <= key.dim; channel += kRows) {
    const size_t at = channel * key.row_bytes * kHeads;
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      QUIRE_UNROLL
      for (int i = 0; i < kHeads; ++i) FetchFar(ahead[c] + at + i * kLineBytes);
    }
    QUIRE_UNROLL
    for (size_t row = 0; row < kRows; ++row) add_channel(channel + row);
  }
  for (; channel < key.dim; ++channel) add_channel(channel);
  QUIRE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) {
      QUIRE_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        hn::Store(sum[i][h][c], d, scores[c] + (i * size_t{key.group} + h) * kSplitTokens);
      }
    }
  }
}

/// For so many query vectors of a KV head ScorePairs is faster on Zen 4.
inline constexpr uint32_t kPairQueries = 2;

/// As StreamScoresInOrder, of the first columns, two by two. Returns how many there are.
template <class Values>
uint32_t StreamPairsInOrder(const float* query, const StreamView& key, const StreamView& value,
                            const Columns& columns, float* scores) {
  constexpr uint32_t kAhead = kPlanesAhead / 2;  // of each column
  uint32_t c = 0;
  for (; c + 2 <= columns.count; c += 2) {
    for (uint32_t head = 0; head < key.heads; head += 2) {
      const uint32_t q = head * key.group;
      const uint32_t column = c + (head + kAhead) / key.heads * 2;
      const std::byte* planes[2];
      const std::byte* ahead[2];
      float* to[2];
      for (uint32_t i = 0; i < 2; ++i) {
        // K column by column, V one plane after the other.
        const uint32_t then = column + i < columns.count
                                  ? (column + i) * key.heads + (head + kAhead) % key.heads
                                  : c * key.heads + 2 * (head + i) + kPlanesAhead;
        planes[i] = columns.key[c + i] + head * key.head_stride_bytes;
        ahead[i] = PlaneInOrder(key, value, columns, nullptr, then);
        to[i] = scores + size_t{q} * kSplitTokens + columns.index[c + i] * kColumnTokens;
      }
      ForSlice<kPairQueries>(key.group, [&]<int kQueries>() HWY_ATTR {
        ScorePairs<Values, kQueries>(query + q * key.dim, key, planes, to, ahead);
      });
    }
  }
  return c;
}

/// As StreamScores, in the order that planes lie in memory, for blocks of one column: from column
/// `c` on, kHeads planes at once.
template <class Values, int kHeads, Fetches kFetches>
void StreamScoresInOrder(const float* query, const StreamView& key, const StreamView& value,
                         const Columns& columns, uint32_t c, float* scores) {
  const GroupSlices slices(key.group);
  for (; c < columns.count; ++c) {
    float* const of_column = scores + columns.index[c] * kColumnTokens;
    for (uint32_t head = 0; head < key.heads; head += kHeads) {
      const std::byte* ahead[kHeads];
      const uint32_t then = c * key.heads + head + kPlanesAhead;
      const std::byte* const first = PlaneInOrder(key, value, columns, nullptr, then);
      for (int i = 0; i < kHeads; ++i) ahead[i] = first + i * key.head_stride_bytes;
      const std::byte* const plane = columns.key[c] + head * key.head_stride_bytes;
      uint32_t q = head * key.group;
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        ForSlice(slices.size(slice), [&]<int kQueries>() HWY_ATTR {
          const auto score = slice == 0
                                 ? ScoreHeads<Values, kQueries, kHeads, kFetches>
                                 : ScoreHeads<Values, kQueries, kHeads, Fetches::kNothing>;
          score(query + q * key.dim, key, plane, of_column + size_t{q} * kSplitTokens, ahead);
        });
      }
    }
  }
}

/// scores[q][column] for every query vector q of the item and every column.
template <class Values>
void StreamScores(const float* query, const StreamView& key, const StreamView& value,
                  const Columns& columns, float* scores, LinesAhead*) {
  if constexpr (kFetchesAhead) {
    if (key.block_columns == 1 && key.heads % kPlanesAtOnce == 0) {
      if (!IsZen4()) {
        StreamScoresInOrder<Values, kPlanesAtOnce, Fetches::kInTurn>(query, key, value, columns, 0,
                                                                     scores);
        return;
      }
      const uint32_t done =
          key.group <= kPairQueries
              ? StreamPairsInOrder<Values>(query, key, value, columns, scores)
              : 0;
      StreamScoresInOrder<Values, 2, Fetches::kInOrder>(query, key, value, columns, done, scores);
      return;
    }
  }
  const bool fetches = FetchesAhead(key.group);
  const size_t turn_dims = fetches ? key.dim : kTurnBytes / (kColumnTokens * Values::kBytes);
  const uint32_t streams = std::max(kStreams, key.block_columns);
  const GroupSlices slices(key.group);
  for (uint32_t c = 0; c < columns.count; c += streams) {
    const uint32_t count = std::min(streams, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit];
      if (fetches) {
        PlanesAhead(key, value, columns, c, count, head, ahead);
        FetchKeyScales(key, columns, c, count, head);
      }
      for (size_t begin = 0; begin < key.dim; begin += turn_dims) {
        const size_t end = std::min(key.dim, begin + turn_dims);
        uint32_t q = head * key.group;
        for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
          const auto turn = [&]<int kQueries>() HWY_ATTR {
            const auto score = fetches && slice == 0 ? ScoreTurn<Values, kQueries, true>
                                                     : ScoreTurn<Values, kQueries, false>;
            score(query + q * key.dim, key.dim, begin, end, columns.key + c, count, offset,
                  key.row_bytes, columns.index + c, scores + size_t{q} * kSplitTokens, ahead);
          };
          ForSlice(slices.size(slice), turn);
        }
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

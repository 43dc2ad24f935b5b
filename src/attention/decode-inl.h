// Kernels that read K and V once, straight from their blocks: for single rows, where memory is the
// limit. With few registers they leave prefetching to the hardware and read as it likes best: a few
// long runs at once (the planes of all KV heads of neighbouring blocks), each run strictly forward.
// On Zen 3 that reaches the speed of a plain stream for K and 85 to 90 % of it for V; one plane of
// 4 KiB after the other reached 45 %, line-by-line software prefetch on top of it 55 %.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_DECODE_INL_H_
#undef QUIRE_ATTENTION_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_DECODE_INL_H_
#endif

#include <algorithm>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Runs that are read at once.
inline constexpr uint32_t kStreams = 4;
/// Bytes of K that one run gives before it is the next one's turn.
inline constexpr size_t kTurnBytes = 512;
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
/// Accumulators of a register tile.
inline constexpr size_t kTileVecs = kVecLanes >= 16 ? 16 : 8;

/// One stream (K or V) as the kernels of an item see it.
struct StreamView {
  uint32_t heads = 0;  // KV heads of the item
  uint32_t group = 0;  // query vectors per KV head
  size_t dim = 0;
  size_t row_bytes = 0;          // K: from one channel's tokens to the next channel's
  size_t head_stride_bytes = 0;  // from one head's plane to the next
  uint32_t block_columns = 0;    // columns of one block
};

/// The group in parts: the first `longer` have one query vector more than the others.
struct GroupParts {
  explicit GroupParts(uint32_t group)
      : count(DivUp(group, kPartQueries)), queries(group / count), longer(group % count) {}
  uint32_t size(uint32_t part) const { return queries + (part < longer ? 1 : 0); }

  uint32_t count;
  uint32_t queries;
  uint32_t longer;
};

/// Columns of K that one kernel call reads, as many as the accumulators allow.
constexpr uint32_t ColumnsPerTile(uint32_t queries) {
  return std::max<uint32_t>(1,
                            std::min<uint32_t>(kStreams, kTileVecs / (queries * kVecsPerColumn)));
}

/// scores[h][column] = Chain over channels [begin, end), continued from what scores holds unless
/// begin is 0. Query vector h at query + h * dim; columns' scores kColumnTokens apart as `index`
/// says.
///
/// `ahead` (or null) are the columns that come next, to be fetched while these are computed.
template <class Values, int kQueries, int kColumns>
void ScoreTile(const float* query, size_t dim, size_t begin, size_t end,
               const std::byte* const* columns, size_t offset_bytes, size_t row_bytes,
               const uint32_t* index, float* scores, const std::byte* const* ahead) {
  constexpr size_t kVecs = kColumns * kVecsPerColumn;
  const Tag d;
  const std::byte* key[kColumns];
  const std::byte* fetch[kColumns];
  Vec sum[kQueries][kVecs];
  QUIRE_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    key[c] = columns[c] + offset_bytes;
    fetch[c] = ahead == nullptr ? key[c] : ahead[c];
  }
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      const float* from = scores + h * kSplitTokens + index[v / kVecsPerColumn] * kColumnTokens;
      sum[h][v] = begin == 0 ? hn::Zero(d) : hn::Load(d, from + (v % kVecsPerColumn) * kVecLanes);
    }
  }
  const auto add_channel = [&](size_t i) HWY_ATTR {
    Vec k[kVecs];
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      k[v] = Values::Load(d, key[v / kVecsPerColumn] + i * row_bytes +
                                 (v % kVecsPerColumn) * kVecLanes * Values::kBytes);
    }
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) {
      const Vec q = hn::Set(d, query[h * dim + i]);
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecs; ++v) sum[h][v] = hn::MulAdd(q, k[v], sum[h][v]);
    }
  };
  constexpr size_t kRowsPerLine = kLineBytes / (kColumnTokens * Values::kBytes);
  size_t i = begin;
  for (; i + kRowsPerLine <= end; i += kRowsPerLine) {
    if constexpr (kFetchesAhead) {
      QUIRE_UNROLL
      for (int c = 0; c < kColumns; ++c) hwy::Prefetch(fetch[c] + i * row_bytes);
    }
    QUIRE_UNROLL
    for (size_t row = 0; row < kRowsPerLine; ++row) add_channel(i + row);
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
template <class Values, int kQueries>
void ScoreTurn(const float* query, size_t dim, size_t begin, size_t end,
               const std::byte* const* columns, uint32_t count, size_t offset_bytes,
               size_t row_bytes, const uint32_t* index, float* scores,
               const std::byte* const* ahead) {
  constexpr int kColumns = ColumnsPerTile(kQueries);
  uint32_t c = 0;
  for (; c + kColumns <= count; c += kColumns) {
    ScoreTile<Values, kQueries, kColumns>(query, dim, begin, end, columns + c, offset_bytes,
                                          row_bytes, index + c, scores,
                                          ahead == nullptr ? nullptr : ahead + c);
  }
  for (; c < count; ++c) {
    ScoreTile<Values, kQueries, 1>(query, dim, begin, end, columns + c, offset_bytes, row_bytes,
                                   index + c, scores, ahead == nullptr ? nullptr : ahead + c);
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

/// scores[q][column] for every query vector q of the item and every column.
template <class Values>
void StreamScores(const float* query, const StreamView& key, const StreamView& value,
                  const Columns& columns, float* scores) {
  const size_t turn_dims = kFetchesAhead ? key.dim : kTurnBytes / (kColumnTokens * Values::kBytes);
  const uint32_t streams = std::max(kStreams, key.block_columns);
  const GroupParts parts(key.group);
  for (uint32_t c = 0; c < columns.count; c += streams) {
    const uint32_t count = std::min(streams, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit];
      if (kFetchesAhead) PlanesAhead(key, value, columns, c, count, head, ahead);
      for (size_t begin = 0; begin < key.dim; begin += turn_dims) {
        const size_t end = std::min(key.dim, begin + turn_dims);
        uint32_t q = head * key.group;
        for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
          const auto turn = [&]<int kQueries>() HWY_ATTR {
            ScoreTurn<Values, kQueries>(query + q * key.dim, key.dim, begin, end, columns.key + c,
                                        count, offset, key.row_bytes, columns.index + c,
                                        scores + size_t{q} * kSplitTokens,
                                        kFetchesAhead && part == 0 ? ahead : nullptr);
          };
          switch (parts.size(part)) {
            case 1: turn.template operator()<1>(); break;
            case 2: turn.template operator()<2>(); break;
            case 3: turn.template operator()<3>(); break;
            default: turn.template operator()<4>(); break;
          }
        }
      }
    }
  }
}

/// out[h][i] += weights[h][t] * value[t][i] for t ascending, channels [i, dim): one chain per
/// output. The sums pass through the cache, so that a token's row is read in one go; the last few
/// channels take vectors half as long, so that no byte beyond the row is read.
template <class Values, int kQueries, int kTokens, class D>
HWY_INLINE void WeighTokens(D d, const std::byte* value, size_t i, size_t dim, const float* weights,
                            float* out, size_t out_stride) {
  constexpr size_t kLanesOfTag = hn::MaxLanes(D());
  hn::Vec<D> w[kQueries][kTokens];
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int t = 0; t < kTokens; ++t) w[h][t] = hn::Set(d, weights[h * kSplitTokens + t]);
  }
  for (; i + kLanesOfTag <= dim; i += kLanesOfTag) {
    hn::Vec<D> sum[kQueries];
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) sum[h] = hn::LoadU(d, out + h * out_stride + i);
    QUIRE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const auto x = Values::Load(d, value + (t * dim + i) * Values::kBytes);
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) sum[h] = hn::MulAdd(w[h][t], x, sum[h]);
    }
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) hn::StoreU(sum[h], d, out + h * out_stride + i);
  }
  if constexpr (kLanesOfTag > 1) {
    if (i < dim) {
      WeighTokens<Values, kQueries, kTokens>(hn::Half<D>(), value, i, dim, weights, out,
                                             out_stride);
    }
  }
}

/// One turn (one or two tokens) of one plane for kQueries query vectors.
template <class Values, int kQueries>
HWY_INLINE void WeighTurn(const std::byte* value, size_t dim, uint32_t tokens, const float* weights,
                          float* out, size_t out_stride) {
  if (tokens == kTurnTokens) {
    WeighTokens<Values, kQueries, kTurnTokens>(Tag(), value, 0, dim, weights, out, out_stride);
  } else {
    WeighTokens<Values, kQueries, 1>(Tag(), value, 0, dim, weights, out, out_stride);
  }
}

/// The same for a whole group; kGroup is its size, or 0 when it has several parts.
template <class Values, int kGroup>
HWY_INLINE void WeighGroup(const std::byte* value, const StreamView& view, uint32_t tokens,
                           const float* weights, float* out, size_t out_stride) {
  if constexpr (kGroup != 0) {
    WeighTurn<Values, kGroup>(value, view.dim, tokens, weights, out, out_stride);
  } else {
    const GroupParts parts(view.group);
    for (uint32_t part = 0; part < parts.count; ++part) {
      switch (parts.size(part)) {
        case 2: WeighTurn<Values, 2>(value, view.dim, tokens, weights, out, out_stride); break;
        case 3: WeighTurn<Values, 3>(value, view.dim, tokens, weights, out, out_stride); break;
        default: WeighTurn<Values, 4>(value, view.dim, tokens, weights, out, out_stride); break;
      }
      weights += parts.size(part) * kSplitTokens;
      out += parts.size(part) * out_stride;
    }
  }
}

/// Neighbouring visible tokens of one column.
struct ValueRun {
  const std::byte* value = nullptr;  // row of the first, of the item's first KV head
  uint32_t first = 0;                // token within the split
  uint32_t tokens = 0;
};

/// A plane that is being read.
struct ValuePlane {
  const std::byte* value;
  const float* weights;
  float* out;
  uint32_t tokens;
};

/// out += weights * values over all runs. Run r goes through its heads one plane at a time,
/// `streams` runs at once and each one plane behind the run before it: so every head meets its runs
/// in ascending order, as its chain demands, although several runs are read at a time.
template <class Values, int kGroup>
void WeighRuns(const ValueRun* runs, uint32_t run_count, const StreamView& view,
               const float* weights, float* out, size_t out_stride) {
  const uint32_t streams = std::min(kStreams, view.heads);
  const uint32_t steps = DivUp(run_count, streams) * view.heads + streams - 1;
  const size_t row_bytes = view.dim * Values::kBytes;
  for (uint32_t step = 0; step < steps; ++step) {
    ValuePlane planes[kStreams];
    uint32_t plane_count = 0;
    for (uint32_t s = 0; s < streams && s <= step; ++s) {
      const uint32_t r = (step - s) / view.heads * streams + s;
      const uint32_t head = (step - s) % view.heads;
      if (r >= run_count) continue;
      const size_t q = size_t{head} * view.group;
      planes[plane_count++] = {runs[r].value + head * view.head_stride_bytes,
                               weights + q * kSplitTokens + runs[r].first, out + q * out_stride,
                               runs[r].tokens};
    }
    for (uint32_t t = 0; t < kColumnTokens; t += kTurnTokens) {
      for (uint32_t p = 0; p < plane_count; ++p) {
        const ValuePlane& plane = planes[p];
        if (t >= plane.tokens) continue;
        WeighGroup<Values, kGroup>(plane.value + t * row_bytes, view,
                                   std::min(kTurnTokens, plane.tokens - t), plane.weights + t,
                                   plane.out, out_stride);
      }
    }
  }
}

/// Channels [i, i + kVecs vectors) of all tokens of a plane, sums in registers.
template <class Values, int kQueries, int kVecs>
HWY_INLINE void WeighChannels(const ValuePlane& plane, const std::byte* ahead, size_t i, size_t dim,
                              size_t out_stride) {
  constexpr int kVecsPerLine = static_cast<int>(kLineBytes / (kVecLanes * Values::kBytes));
  const Tag d;
  Vec sum[kQueries][kVecs];
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sum[h][v] = hn::LoadU(d, plane.out + h * out_stride + i + v * kVecLanes);
    }
  }
  for (uint32_t t = 0; t < plane.tokens; ++t) {
    const size_t row = (t * dim + i) * Values::kBytes;
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; v += kVecsPerLine) {
      hwy::Prefetch(ahead + row + v * kVecLanes * Values::kBytes);
    }
    Vec w[kQueries];
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) w[h] = hn::Set(d, plane.weights[h * kSplitTokens + t]);
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const Vec x = Values::Load(d, plane.value + row + v * kVecLanes * Values::kBytes);
      QUIRE_UNROLL
      for (int h = 0; h < kQueries; ++h) sum[h][v] = hn::MulAdd(w[h], x, sum[h][v]);
    }
  }
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      hn::StoreU(sum[h][v], d, plane.out + h * out_stride + i + v * kVecLanes);
    }
  }
}

template <class Values, int kQueries>
void WeighPlane(const ValuePlane& plane, const std::byte* ahead, size_t dim, size_t out_stride) {
  constexpr int kVecs = 16 / kQueries;
  size_t i = 0;
  for (; i + kVecs * kVecLanes <= dim; i += kVecs * kVecLanes) {
    WeighChannels<Values, kQueries, kVecs>(plane, ahead, i, dim, out_stride);
  }
  for (; i + kVecLanes <= dim; i += kVecLanes) {
    WeighChannels<Values, kQueries, 1>(plane, ahead, i, dim, out_stride);
  }
  for (uint32_t t = 0; t < plane.tokens && i < dim; ++t) {
    WeighTokens<Values, kQueries, 1>(Tag(), plane.value + t * dim * Values::kBytes, i, dim,
                                     plane.weights + t, plane.out, out_stride);
  }
}

/// out += weights * values over all runs, plane by plane in the order they lie in memory, each
/// fetched some planes before it is needed; at the end the first columns of `next` (or null).
template <class Values>
void WeighPlanes(const ValueRun* runs, uint32_t run_count, const StreamView& view,
                 const Columns* next, const float* weights, float* out, size_t out_stride) {
  const GroupParts parts(view.group);
  const uint32_t planes = run_count * view.heads;
  for (uint32_t p = 0; p < planes; ++p) {
    const uint32_t r = p / view.heads;
    const uint32_t head = p % view.heads;
    const uint32_t then = p + kPlanesAhead;
    const std::byte* ahead = runs[r].value;
    if (then < planes) {
      ahead = runs[then / view.heads].value + then % view.heads * view.head_stride_bytes;
    } else if (next != nullptr && then - planes < next->count) {
      ahead = next->key[then - planes];
    }
    const size_t q = size_t{head} * view.group;
    ValuePlane plane = {runs[r].value + head * view.head_stride_bytes,
                        weights + q * kSplitTokens + runs[r].first, out + q * out_stride,
                        runs[r].tokens};
    for (uint32_t part = 0; part < parts.count; ++part) {
      switch (parts.size(part)) {
        case 1: WeighPlane<Values, 1>(plane, ahead, view.dim, out_stride); break;
        case 2: WeighPlane<Values, 2>(plane, ahead, view.dim, out_stride); break;
        case 3: WeighPlane<Values, 3>(plane, ahead, view.dim, out_stride); break;
        default: WeighPlane<Values, 4>(plane, ahead, view.dim, out_stride); break;
      }
      plane.weights += parts.size(part) * kSplitTokens;
      plane.out += parts.size(part) * out_stride;
    }
  }
}

template <class Values>
void StreamValues(const ValueRun* runs, uint32_t run_count, const StreamView& view,
                  const Columns* next, const float* weights, float* out, size_t out_stride) {
  if constexpr (kFetchesAhead) {
    WeighPlanes<Values>(runs, run_count, view, next, weights, out, out_stride);
    return;
  }
  switch (view.group) {
    case 1: WeighRuns<Values, 1>(runs, run_count, view, weights, out, out_stride); break;
    case 2: WeighRuns<Values, 2>(runs, run_count, view, weights, out, out_stride); break;
    case 3: WeighRuns<Values, 3>(runs, run_count, view, weights, out, out_stride); break;
    case 4: WeighRuns<Values, 4>(runs, run_count, view, weights, out, out_stride); break;
    default: WeighRuns<Values, 0>(runs, run_count, view, weights, out, out_stride); break;
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

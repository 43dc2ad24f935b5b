// The second product of single rows: weights times V, straight from the blocks. decode-inl.h says
// how they are read.
#include "attention/decode-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_WEIGH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_WEIGH_INL_H_
#undef QUIRE_ATTENTION_WEIGH_INL_H_
#else
#define QUIRE_ATTENTION_WEIGH_INL_H_
#endif

#include <algorithm>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

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
  QUIRE_UNROLL_FEW
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

/// One or two tokens of one plane for kQueries query vectors.
template <class Values, int kQueries>
HWY_INLINE void WeighTurn(const std::byte* value, size_t dim, uint32_t tokens, const float* weights,
                          float* out, size_t out_stride) {
  if (tokens == kTurnTokens) {
    WeighTokens<Values, kQueries, kTurnTokens>(Tag(), value, 0, dim, weights, out, out_stride);
  } else {
    WeighTokens<Values, kQueries, 1>(Tag(), value, 0, dim, weights, out, out_stride);
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
/// `streams` runs at once and each one plane behind the run before it: so every head has its runs
/// in ascending order, as its chain demands, although several runs are read at a time.
template <class Values, int kQueries>
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
        WeighTurn<Values, kQueries>(plane.value + t * row_bytes, view.dim,
                                    std::min(kTurnTokens, plane.tokens - t), plane.weights + t,
                                    plane.out, out_stride);
      }
    }
  }
}

/// Channels [i, i + kVecs vectors) of all tokens of a plane, sums in registers; of the planes
/// `ahead` the share that the bytes read have of the plane is fetched.
template <class Values, int kQueries, int kVecs, Fetches kFetches>
HWY_INLINE void WeighChannels(const ValuePlane& plane, const std::byte* const* ahead, size_t i,
                              size_t dim, size_t out_stride) {
  constexpr size_t kBytes = kVecs * kVecLanes * Values::kBytes;  // of a token
  constexpr size_t kTurn = kPlanesAtOnce * kLineBytes;           // bytes read to each line fetched
  const Tag d;
  Vec sum[kQueries][kVecs];
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sum[h][v] = hn::LoadU(d, plane.out + h * out_stride + i + v * kVecLanes);
    }
  }
  const size_t row_bytes = dim * Values::kBytes;
  const size_t before = i * plane.tokens * Values::kBytes;
  QUIRE_UNROLL_FEW
  for (uint32_t t = 0; t < plane.tokens; ++t) {
    const size_t row = t * row_bytes + i * Values::kBytes;
    if constexpr (kFetches == Fetches::kInOrder) {
      const size_t read = before + t * kBytes;
      QUIRE_UNROLL
      for (size_t line = 0; line < kBytes; line += kLineBytes) {
        if (kBytes >= kLineBytes || read % kLineBytes == 0) FetchFar(ahead[0] + read + line);
      }
    }
    if constexpr (kFetches == Fetches::kInTurn) {
      const size_t read = before + t * kBytes;
      QUIRE_UNROLL
      for (size_t line = 0; line < kBytes; line += kLineBytes) {
        FetchNear(plane.value + row + line + kNearBytes);
      }
      QUIRE_UNROLL
      for (size_t turn = 0; turn < kBytes; turn += kTurn) {
        if (kBytes < kTurn && read % kTurn >= kBytes) continue;
        QUIRE_UNROLL
        for (uint32_t p = 0; p < kPlanesAtOnce; ++p) {
          FetchFar(ahead[p] + (read + turn) / kTurn * kLineBytes);
        }
      }
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

template <class Values, int kQueries, Fetches kFetches>
void WeighPlane(const ValuePlane& plane, const std::byte* const* ahead, size_t dim,
                size_t out_stride) {
  constexpr int kVecs = kTileVecs / kQueries;
  size_t i = 0;
  for (; i + kVecs * kVecLanes <= dim; i += kVecs * kVecLanes) {
    WeighChannels<Values, kQueries, kVecs, kFetches>(plane, ahead, i, dim, out_stride);
  }
  for (; i + kVecLanes <= dim; i += kVecLanes) {
    WeighChannels<Values, kQueries, 1, kFetches>(plane, ahead, i, dim, out_stride);
  }
  for (uint32_t t = 0; t < plane.tokens && i < dim; ++t) {
    WeighTokens<Values, kQueries, 1>(Tag(), plane.value + t * dim * Values::kBytes, i, dim,
                                     plane.weights + t, plane.out, out_stride);
  }
}

/// The bytes that are read kPlanesAhead planes after plane p of all runs: of the same split, or the
/// first planes of `next` (or null).
inline const std::byte* PlaneAhead(const ValueRun* runs, uint32_t p, uint32_t planes,
                                   const StreamView& key, const StreamView& view,
                                   const Columns* next) {
  uint32_t then = p + kPlanesAhead;
  if (then < planes) {
    return runs[then / view.heads].value + then % view.heads * view.head_stride_bytes;
  }
  then -= planes;
  if (next != nullptr && then / key.heads < next->count) {
    return next->key[then / key.heads] + then % key.heads * key.head_stride_bytes;
  }
  return runs[0].value;
}

/// Where fetching begins while plane p is read: in each of the kPlanesAtOnce planes that are
/// kPlanesAhead later, the share of one plane. (Where heads are no multiple of them, the last ones
/// may be others.)
inline void ShareAhead(const ValueRun* runs, uint32_t p, uint32_t planes, const StreamView& key,
                       const StreamView& view, const Columns* next, const std::byte** ahead) {
  const size_t share = p % kPlanesAtOnce * (kColumnTokens * view.token_bytes / kPlanesAtOnce);
  const std::byte* const first =
      PlaneAhead(runs, RoundDown(p, kPlanesAtOnce), planes, key, view, next) + share;
  for (uint32_t i = 0; i < kPlanesAtOnce; ++i) ahead[i] = first + i * view.head_stride_bytes;
}

/// out += weights * values over all runs, plane by plane in the order they lie in memory, each
/// fetched some planes before it is needed; at the end the first planes of `next` (or null).
template <class Values, Fetches kFetches>
void WeighPlanes(const ValueRun* runs, uint32_t run_count, const StreamView& key,
                 const StreamView& view, const Columns* next, const float* weights, float* out,
                 size_t out_stride) {
  const GroupSlices slices(view.group);
  const uint32_t planes = run_count * view.heads;
  for (uint32_t p = 0; p < planes; ++p) {
    const uint32_t r = p / view.heads;
    const uint32_t head = p % view.heads;
    const std::byte* ahead[kPlanesAtOnce];
    if constexpr (kFetches == Fetches::kInOrder) {
      ahead[0] = PlaneAhead(runs, p, planes, key, view, next);
    } else {
      ShareAhead(runs, p, planes, key, view, next, ahead);
    }
    const size_t q = size_t{head} * view.group;
    ValuePlane plane = {runs[r].value + head * view.head_stride_bytes,
                        weights + q * kSplitTokens + runs[r].first, out + q * out_stride,
                        runs[r].tokens};
    for (uint32_t slice = 0; slice < slices.count; ++slice) {
      ForSlice(slices.size(slice), [&]<int kQueries>() HWY_ATTR {
        const auto weigh = slice == 0 ? WeighPlane<Values, kQueries, kFetches>
                                      : WeighPlane<Values, kQueries, Fetches::kNothing>;
        weigh(plane, ahead, view.dim, out_stride);
      });
      plane.weights += slices.size(slice) * kSplitTokens;
      plane.out += slices.size(slice) * out_stride;
    }
  }
}

template <class Values>
void StreamValues(const ValueRun* runs, uint32_t run_count, const StreamView& key,
                  const StreamView& view, const Columns* next, const float* weights, float* out,
                  size_t out_stride, LinesAhead*) {
  if (FetchesAhead(view.group)) {
    constexpr Fetches kOfZen4 = kFetchesAhead ? Fetches::kInOrder : Fetches::kInTurn;
    const auto weigh =
        IsZen4() ? WeighPlanes<Values, kOfZen4> : WeighPlanes<Values, Fetches::kInTurn>;
    weigh(runs, run_count, key, view, next, weights, out, out_stride);
  } else if constexpr (!kFetchesAhead) {
    ForSlice(view.group, [&]<int kQueries>() HWY_ATTR {
      WeighRuns<Values, kQueries>(runs, run_count, view, weights, out, out_stride);
    });
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Single rows over q25, straight from the blocks; how planes are read is told in decode-inl.h.
#include "attention/pairs-inl.h"
#include "attention/weigh-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_PAIRS_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_PAIRS_DECODE_INL_H_
#undef QUIRE_ATTENTION_PAIRS_DECODE_INL_H_
#else
#define QUIRE_ATTENTION_PAIRS_DECODE_INL_H_
#endif

#include <algorithm>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// scores[h][column] of kColumns columns from column c on, all channels.
template <int kQueries, int kColumns>
void ScorePairs(const float* query, const StreamView& key, const Columns& columns, uint32_t c,
                size_t offset_bytes, float* scores, const std::byte* const* ahead) {
  constexpr size_t kVecs = kColumns * kVecsPerColumn;
  const Tag d;
  const size_t block_tokens = size_t{key.block_columns} * kColumnTokens;
  Vec sum[kQueries][kVecs];
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) sum[h][v] = hn::Zero(d);
  }
  for (size_t pair = 0; 2 * pair < key.dim; ++pair) {
    const bool high = pair % 2 != 0;
    const bool has_second = 2 * pair + 1 < key.dim;
    const float* q = query + 2 * pair;
    QUIRE_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      // Codes and signs of a plane lie in a row, ten bytes a pair where a block is one column.
      if (ahead != nullptr && pair % 6 == 0) {
        hwy::Prefetch(ahead[i] + pair / 6 * kLineBytes);
      }
      const SixteenPairs tokens(columns.key[c + i] + offset_bytes + pair / 2 * block_tokens,
                                columns.key_signs[c + i] + offset_bytes + pair * block_tokens / 8,
                                high);
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecsPerColumn; ++v) {
        const Vec first = tokens.Load<PairFirst>(v);
        const Vec second = tokens.Load<PairSecond>(v);
        QUIRE_UNROLL
        for (int h = 0; h < kQueries; ++h) {
          Vec& s = sum[h][i * kVecsPerColumn + v];
          s = hn::MulAdd(hn::Set(d, q[h * key.dim]), first, s);
          if (has_second) s = hn::MulAdd(hn::Set(d, q[h * key.dim + 1]), second, s);
        }
      }
    }
  }
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      const uint32_t index = columns.index[c + v / kVecsPerColumn];
      hn::Store(sum[h][v], d,
                scores + h * kSplitTokens + index * kColumnTokens + v % kVecsPerColumn * kVecLanes);
    }
  }
}

/// As StreamScores.
inline void StreamPairScores(const float* query, const StreamView& key, const StreamView& value,
                             const Columns& columns, float* scores) {
  const GroupParts parts(key.group);
  for (uint32_t c = 0; c < columns.count; c += kStreams) {
    const uint32_t count = std::min(kStreams, columns.count - c);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit];
      {
        PlanesAhead(key, value, columns, c, count, head, ahead);
        FetchScales(key, value, columns, c, count, head);
      }
      uint32_t q = head * key.group;
      for (uint32_t part = 0; part < parts.count; q += parts.size(part++)) {
        const auto score = [&]<int kQueries>() HWY_ATTR {
          constexpr int kColumns = ColumnsPerTile(kQueries);
          const std::byte* const* fetch = part == 0 ? ahead : nullptr;
          const float* from = query + q * key.dim;
          float* to = scores + size_t{q} * kSplitTokens;
          uint32_t i = 0;
          for (; i + kColumns <= count; i += kColumns) {
            ScorePairs<kQueries, kColumns>(from, key, columns, c + i, offset, to,
                                           fetch == nullptr ? nullptr : fetch + i);
          }
          for (; i < count; ++i) {
            ScorePairs<kQueries, 1>(from, key, columns, c + i, offset, to,
                                    fetch == nullptr ? nullptr : fetch + i);
          }
        };
        ForPart(parts.size(part), score);
      }
    }
  }
}

/// Some neighbouring tokens of one head's plane of V.
struct PairPlane {
  const std::byte* codes;
  const std::byte* signs;
  const float* weights;
  float* out;
  uint32_t tokens;
};

/// Channels [i, i + 32 * kRuns) of all tokens of a plane, sums in registers.
template <int kQueries, int kRuns>
void WeighPairRuns(const PairPlane& plane, size_t i, size_t dim, size_t out_stride) {
  constexpr size_t kVecsPerRun = kNibbleGroup / kVecLanes;
  constexpr size_t kHalf = kVecsPerRun / 2;
  const Tag d;
  const size_t row_bytes = codec::PairRowBytes(static_cast<uint32_t>(dim));
  const size_t sign_bytes = (codec::PairCount(static_cast<uint32_t>(dim)) + 7) / 8;
  const size_t run = i / kNibbleGroup;
  Vec sum[kQueries][kRuns * kVecsPerRun];
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kRuns * kVecsPerRun; ++v) {
      sum[h][v] = hn::LoadU(d, plane.out + h * out_stride + i + v * kVecLanes);
    }
  }
  for (uint32_t t = 0; t < plane.tokens; ++t) {
    Vec w[kQueries];
    QUIRE_UNROLL
    for (int h = 0; h < kQueries; ++h) w[h] = hn::Set(d, plane.weights[h * kSplitTokens + t]);
    QUIRE_UNROLL
    for (int r = 0; r < kRuns; ++r) {
      const SixteenPairs pairs(plane.codes + t * row_bytes + (run + r) / 2 * 16,
                               plane.signs + t * sign_bytes + (run + r) * 2, (run + r) % 2 != 0);
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecsPerRun; ++v) {
        const Vec x = v < kHalf ? pairs.Load<PairFirst>(v) : pairs.Load<PairSecond>(v - kHalf);
        QUIRE_UNROLL
        for (int h = 0; h < kQueries; ++h) {
          Vec& s = sum[h][r * kVecsPerRun + v];
          s = hn::MulAdd(w[h], x, s);
        }
      }
    }
  }
  QUIRE_UNROLL
  for (int h = 0; h < kQueries; ++h) {
    QUIRE_UNROLL
    for (size_t v = 0; v < kRuns * kVecsPerRun; ++v) {
      hn::StoreU(sum[h][v], d, plane.out + h * out_stride + i + v * kVecLanes);
    }
  }
}

template <int kQueries>
void WeighPairs(const PairPlane& plane, size_t dim, size_t out_stride) {
  const Tag d;
  size_t i = 0;
  if constexpr (kVecLanes >= 16) {
    for (; i + 2 * kNibbleGroup <= dim; i += 2 * kNibbleGroup) {
      WeighPairRuns<kQueries, 2>(plane, i, dim, out_stride);
    }
  }
  for (; i + kNibbleGroup <= dim; i += kNibbleGroup) {
    WeighPairRuns<kQueries, 1>(plane, i, dim, out_stride);
  }
  const size_t row_bytes = codec::PairRowBytes(static_cast<uint32_t>(dim));
  const size_t sign_bytes = (codec::PairCount(static_cast<uint32_t>(dim)) + 7) / 8;
  const size_t run = i / kNibbleGroup;
  for (uint32_t t = 0; t < plane.tokens && i < dim; ++t) {
    // Zeros are added to the padding of `out`.
    HWY_ALIGN float last[kNibbleGroup] = {};
    LoadLastPairs(plane.codes + t * row_bytes + run / 2 * 16,
                  plane.signs + t * sign_bytes + run * 2, run % 2 != 0,
                  static_cast<uint32_t>(dim - i), last);
    for (size_t c = 0; i + c < out_stride; c += kVecLanes) {
      const Vec x = hn::Load(d, last + c);
      for (int h = 0; h < kQueries; ++h) {
        float* to = plane.out + h * out_stride + i + c;
        const Vec w = hn::Set(d, plane.weights[h * kSplitTokens + t]);
        hn::StoreU(hn::MulAdd(w, x, hn::LoadU(d, to)), d, to);
      }
    }
  }
}

/// As StreamValues.
inline void StreamPairValues(const ValueRun* runs, uint32_t run_count, const StreamView& view,
                             const Columns* next, const float* weights, float* out,
                             size_t out_stride) {
  const GroupParts parts(view.group);
  const size_t fetch_bytes = codec::RowBytes(Codec::kQ25, static_cast<uint32_t>(view.dim));
  const uint32_t planes = run_count * view.heads;
  for (uint32_t p = 0; p < planes; ++p) {
    const uint32_t head = p % view.heads;
    const ValueRun& run = runs[p / view.heads];
    {
      const std::byte* ahead = PlaneAhead(runs, p, planes, view, next);
      for (uint32_t t = 0; t < kColumnTokens; ++t) hwy::Prefetch(ahead + t * fetch_bytes);
    }
    const size_t q = size_t{head} * view.group;
    PairPlane plane = {run.value + head * view.head_stride_bytes,
                       run.signs + head * view.head_stride_bytes,
                       weights + q * kSplitTokens + run.first, out + q * out_stride, run.tokens};
    for (uint32_t part = 0; part < parts.count; ++part) {
      ForPart(parts.size(part),
              [&]<int kQueries>() HWY_ATTR { WeighPairs<kQueries>(plane, view.dim, out_stride); });
      plane.weights += parts.size(part) * kSplitTokens;
      plane.out += parts.size(part) * out_stride;
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Integer codes on matrix tiles (AMX): a tile holds 64 terms of sixteen lanes, tokens of K or
// channels of V, and one instruction multiplies them with as many numbers of up to sixteen query
// vectors. Sums are exact, so the bits are those of integer-inl.h. Queries and weights have sixteen
// bits, which are multiplied as a high byte with a sign and a low one without.
//
// A row of a tile has four terms of each lane. They stand in the order 0, 2, 1, 3, in which two
// pairs of 16-bit numbers become bytes without a permutation; the other factor has the same order.
#include "attention/integer_decode-inl.h"
#include "attention/prefill-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_AMX_INL_H_
#undef QUIRE_ATTENTION_AMX_INL_H_
#else
#define QUIRE_ATTENTION_AMX_INL_H_
#endif

#if HWY_TARGET == HWY_AVX3_DL

#include <array>

#include "base/amx.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Terms of a row of codes, rows and bytes of a tile.
inline constexpr size_t kAmxQuad = 4;
inline constexpr size_t kAmxRows = 16;
inline constexpr size_t kAmxRowBytes = 64;
inline constexpr size_t kAmxTileBytes = kAmxRows * kAmxRowBytes;
/// Terms of a tile: a group of tokens of V is one.
inline constexpr size_t kAmxTerms = kAmxRows * kAmxQuad;
static_assert(kAmxTerms == kGroupTokens);
/// Query vectors of a tile at most.
inline constexpr uint32_t kAmxQueriesMax = kAmxRows;

// Which tile is what: sums of two tiles of codes, each with the high and with the low bytes; the
// bytes of queries or weights; codes.
inline constexpr int kHighSums = 0;
inline constexpr int kLowSums = 2;
inline constexpr int kHighBytes = 4;
inline constexpr int kLowBytes = 5;
inline constexpr int kCodeTiles = 6;
/// Tiles of codes that are multiplied together.
inline constexpr uint32_t kAmxTogether = 2;

using ByteTag = hn::FixedTag<int8_t, kAmxRowBytes>;
using ByteVec = hn::Vec<ByteTag>;

/// The tiles of a thread while it computes an item.
class AmxTiles {
 public:
  /// Makes them fit so many query vectors; what they hold is lost if they do not yet.
  void Use(uint32_t queries) {
    if (queries == queries_) return;
    AmxConfig config;
    for (int tile = 0; tile < kCodeTiles; ++tile) config.Set(tile, queries, kAmxRowBytes);
    for (int tile = kCodeTiles; tile < 8; ++tile) config.Set(tile, kAmxRows, kAmxRowBytes);
    LoadAmxConfig(config);
    queries_ = queries;
  }
  uint32_t queries() const { return queries_; }

 private:
  const AmxScope scope_;
  uint32_t queries_ = 0;
};

/// Sums of tile kIndex of codes += the high and the low bytes times them.
template <int kIndex>
HWY_INLINE void MultiplyAmxTile() {
  asm volatile(
      "tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0\n\t"
      "tdpbusd %%tmm%c2, %%tmm%c4, %%tmm%c3"
      :
      : "i"(kHighSums + kIndex), "i"(kHighBytes), "i"(kCodeTiles + kIndex), "i"(kLowSums + kIndex),
        "i"(kLowBytes));
}

/// Of every 16 bits the low byte of `low` and the high one of `high`.
HWY_INLINE ByteVec Blend(ByteVec low, ByteVec high) {
  return ByteVec{_mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), low.raw, high.raw, 0xca)};
}
HWY_INLINE ByteVec BytesUp(ByteVec x) { return ByteVec{_mm512_slli_epi16(x.raw, 8)}; }
HWY_INLINE ByteVec BytesDown(ByteVec x) { return ByteVec{_mm512_srli_epi16(x.raw, 8)}; }

using ByteOrder = std::array<uint8_t, kAmxRowBytes>;

HWY_INLINE __m512i LoadOrder(const ByteOrder& order) { return _mm512_loadu_si512(order.data()); }

/// Where the bytes of a row of int8 lie among those of two steps.
inline constexpr ByteOrder kInt8Order = [] {
  ByteOrder order{};
  for (uint8_t lane = 0; lane < 16; ++lane) {
    for (uint8_t i = 0; i < kAmxQuad; ++i) {
      order[kAmxQuad * lane + i] = i % 2 * codec::kStepBytes + 2 * lane + i / 2;
    }
  }
  return order;
}();

/// Where the low bytes of 64 numbers of 16 bits lie, in the order of rows.
inline constexpr ByteOrder kLowByteOrder = [] {
  ByteOrder order{};
  for (uint8_t i = 0; i < kAmxRowBytes; ++i) {
    const uint8_t term = i / kAmxQuad * kAmxQuad + i % 2 * 2 + i % kAmxQuad / 2;
    order[i] = 2 * term;
  }
  return order;
}();

/// 64 numbers as a row of high and one of low bytes.
HWY_INLINE void SplitNumbers(const int16_t* numbers, int8_t* high, int8_t* low) {
  const __m512i first = _mm512_loadu_si512(numbers);
  const __m512i second = _mm512_loadu_si512(numbers + kAmxTerms / 2);
  const __m512i order = LoadOrder(kLowByteOrder);
  _mm512_storeu_si512(low, _mm512_permutex2var_epi8(first, order, second));
  const __m512i of_high = _mm512_or_si512(order, _mm512_set1_epi8(1));
  _mm512_storeu_si512(high, _mm512_permutex2var_epi8(first, of_high, second));
}

/// Query vectors that kernels take together, from [count, dim] to their high bytes [count, stride]
/// and their low ones, zeros after the last channel.
inline void FixAmxQueries(const float* queries, size_t count, size_t dim, size_t stride,
                          const IntegerValues& values, int16_t* to, float* units, int32_t*) {
  alignas(64) int16_t fixed[FixedStride(kDimMax)];
  auto* const high = reinterpret_cast<int8_t*>(to);
  int8_t* const low = high + count * stride;
  for (size_t i = 0; i < count; ++i) {
    units[i] = FixQuery(queries + i * dim, dim, stride, fixed) * values.code_unit;
    for (size_t d = 0; d < stride; d += kAmxTerms) {
      SplitNumbers(fixed + d, high + i * stride + d, low + i * stride + d);
    }
  }
}

/// No line needs to be fetched.
struct FetchNothing {
  void operator()(size_t) const {}
};

/// The row of two pairs of terms.
template <Codec kCodec>
HWY_INLINE void StoreRow(const PairVecOf<1>* first, const PairVecOf<1>* second, int8_t* to) {
  const PairTag d;
  const auto whole = [&](const PairVecOf<1>* pair) QUIRE_INLINE {
    const PairVec both = hn::Combine(d, pair[1], pair[0]);
    const PairVec numbers = kStride<kCodec> == 2 ? hn::Add(both, both) : both;
    return hn::BitCast(ByteTag(), hn::Sub(numbers, hn::Set(d, int16_t{kBias<kCodec>})));
  };
  hn::Store(Blend(whole(first), BytesUp(whole(second))), ByteTag(), to);
}

/// The integers of codes of half a byte.
template <Codec kCodec>
inline constexpr codec::IntegerTable kIntegersOfNibbles = [] {
  codec::IntegerTable integers{};
  for (uint8_t code = 0; code < integers.size(); ++code) {
    integers[code] = static_cast<int8_t>(codec::FormatOf<kCodec>::IntegerOf(code));
  }
  return integers;
}();

/// Rows from steps of a tile of codes, as many as there are terms in `steps` steps. Nothing behind
/// them is read. fetch(at) is called for every line of them.
template <Codec kCodec, class Fetch>
  requires(kHasBytes<kCodec>)
HWY_INLINE void ExpandRows(const std::byte* codes, size_t steps, int8_t* to, const Fetch& fetch) {
  const ByteTag d;
  const hn::Half<ByteTag> half;
  const auto* from = reinterpret_cast<const int8_t*>(codes);
  const __m512i order = LoadOrder(kInt8Order);
  const auto store = [&](ByteVec bytes) QUIRE_INLINE {
    hn::Store(ByteVec{_mm512_permutexvar_epi8(order, bytes.raw)}, d, to);
  };
  size_t at = 0;
  for (; steps >= 2; steps -= 2, at += kAmxRowBytes, to += kAmxRowBytes) {
    fetch(at);
    store(hn::LoadU(d, from + at));
  }
  if (steps != 0) store(hn::ZeroExtendVector(d, hn::LoadU(half, from + at)));
}

template <Codec kCodec, class Fetch>
  requires(kLayout<kCodec> == codec::CodeLayout::kNibbleTiles)
HWY_INLINE void ExpandRows(const std::byte* codes, size_t steps, int8_t* to, const Fetch& fetch) {
  const ByteTag d;
  const hn::Half<ByteTag> half;
  const auto* from = reinterpret_cast<const int8_t*>(codes);
  const auto store = [&]<bool kBoth>(ByteVec bytes) QUIRE_INLINE {
    const ByteVec low = LookUpLow(kIntegersOfNibbles<kCodec>, bytes);
    const ByteVec high = LookUpLow(kIntegersOfNibbles<kCodec>, HighNibbles(bytes));
    const ByteVec lanes_0_to_7 = Blend(low, BytesUp(high));
    const ByteVec lanes_8_to_15 = Blend(BytesDown(low), high);
    hn::Store(hn::LowerHalf(half, lanes_0_to_7), half, to);
    hn::Store(hn::LowerHalf(half, lanes_8_to_15), half, to + kAmxRowBytes / 2);
    if constexpr (kBoth) {
      hn::Store(hn::UpperHalf(half, lanes_0_to_7), half, to + kAmxRowBytes);
      hn::Store(hn::UpperHalf(half, lanes_8_to_15), half, to + kAmxRowBytes * 3 / 2);
    }
  };
  size_t at = 0;
  for (; steps >= 2; steps -= 2, at += kAmxRowBytes, to += 2 * kAmxRowBytes) {
    fetch(at);
    store.template operator()<true>(hn::LoadU(d, from + at));
  }
  if (steps != 0) {
    store.template operator()<false>(hn::ZeroExtendVector(d, hn::LoadU(half, from + at)));
  }
}

/// One column of K to rows of four channels. `fetch`: see ExpandRows.
template <Codec kCodec, class Fetch>
HWY_INLINE void ExpandAmxKeyColumn(const std::byte* codes, size_t dim, int8_t* to,
                                   const Fetch& fetch) {
  if constexpr (kHasPairs<kCodec>) {
    constexpr size_t kChannels = 2 * codec::kPairTileTerms;
    size_t at = 0;
    for (size_t d = 0; d < dim; d += kChannels, at += codec::kPairTileBytes) {
      for (size_t line = 0; line < codec::kPairTileBytes; line += kLineBytes) fetch(at + line);
      Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
        PairVecOf<1> pairs[kPairsPerStep<kCodec>][kVecsPerStep];
        LoadPairs<kCodec, kStep, 1, false>(&codes, at, pairs);
        QUIRE_UNROLL
        for (int p = 0; p < kPairsPerStep<kCodec>; p += 2, to += kAmxRowBytes) {
          StoreRow<kCodec>(pairs[p], pairs[p + 1], to);
        }
      });
    }
  } else {
    ExpandRows<kCodec>(codes, DivUp(dim, 2 * kPairsPerStep<kCodec>), to, fetch);
  }
}

/// The sixteen tokens of one tile of V to rows of four tokens, four for each panel of channels;
/// panels `panel_stride` apart.
template <Codec kCodec, class Fetch>
HWY_INLINE void ExpandAmxValueTile(const std::byte* codes, int8_t* to, size_t panel_stride,
                                   const Fetch& fetch) {
  if constexpr (kHasPairs<kCodec>) {
    for (size_t line = 0; line < codec::kPairTileBytes; line += kLineBytes) fetch(line);
    Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
      PairVecOf<1> pairs[kPairsPerStep<kCodec>][kVecsPerStep];
      LoadPairs<kCodec, kStep, 1, false>(&codes, 0, pairs);
      int8_t* const row = to + kStep * kAmxRowBytes;
      StoreRow<kCodec>(pairs[0], pairs[2], row);
      StoreRow<kCodec>(pairs[1], pairs[3], row + panel_stride);
    });
  } else {
    ExpandRows<kCodec>(codes, kTileSteps<kCodec>, to, fetch);
  }
}

/// Bytes of an expanded column of K, of a panel of V.
constexpr size_t AmxKeyBytes(size_t dim) { return FixedStride(dim) * kColumnTokens; }
inline constexpr size_t kAmxValueBytes = size_t{kSplitTokens} * kPanelDims;

template <Codec kCodec>
void ExpandAmxKey(const std::byte* codes, size_t dim, uint32_t column, int16_t* panels) {
  ExpandAmxKeyColumn<kCodec>(
      codes, dim, reinterpret_cast<int8_t*>(panels) + column * AmxKeyBytes(dim), FetchNothing());
}

template <Codec kCodec>
void ExpandAmxValue(const std::byte* codes, size_t dim, uint32_t column, int16_t* panels) {
  constexpr size_t kPanels = kValuesPerCode<kCodec>;
  auto* to = reinterpret_cast<int8_t*>(panels) + column * kColumnTokens * kPanelDims;
  for (size_t d = 0; d < dim; d += kPanels * kPanelDims) {
    ExpandAmxValueTile<kCodec>(codes, to, kAmxValueBytes, FetchNothing());
    to += kPanels * kAmxValueBytes;
    codes += codec::TileBytes(kCodec, codec::kTileLanes);
  }
}

/// Numbers of query vectors in two bytes, as a tile reads them.
struct AmxFactors {
  const int8_t* high = nullptr;  // rows `stride` bytes apart
  const int8_t* low = nullptr;
  size_t stride = 0;
};

/// Sums of the tiles that were multiplied together.
struct AmxSums {
  alignas(64) int32_t high[kAmxTogether][kAmxQueriesMax * 16];
  alignas(64) int32_t low[kAmxTogether][kAmxQueriesMax * 16];

  HWY_INLINE SumVec Of(uint32_t tile, uint32_t query) const {
    const SumTag d;
    const SumVec of_high = hn::Load(d, high[tile] + query * 16);
    return hn::Add(hn::ShiftLeft<8>(of_high), hn::Load(d, low[tile] + query * 16));
  }
};

/// The products of all query vectors with kTiles runs of tiles of codes, `steps` tiles each.
template <int kTiles>
HWY_INLINE void MultiplyAmx(const AmxFactors& factors, const int8_t* const* codes, size_t steps,
                            AmxSums* sums) {
  Repeat<kTiles>([&]<int kIndex>() QUIRE_INLINE {
    ClearAmxTile<kHighSums + kIndex>();
    ClearAmxTile<kLowSums + kIndex>();
  });
  for (size_t step = 0; step < steps; ++step) {
    LoadAmxTile<kHighBytes>(factors.high + step * kAmxTerms, factors.stride);
    LoadAmxTile<kLowBytes>(factors.low + step * kAmxTerms, factors.stride);
    Repeat<kTiles>([&]<int kIndex>() QUIRE_INLINE {
      LoadAmxTile<kCodeTiles + kIndex>(codes[kIndex] + step * kAmxTileBytes, kAmxRowBytes);
      MultiplyAmxTile<kIndex>();
    });
  }
  Repeat<kTiles>([&]<int kIndex>() QUIRE_INLINE {
    StoreAmxTile<kHighSums + kIndex>(sums->high[kIndex], kAmxRowBytes);
    StoreAmxTile<kLowSums + kIndex>(sums->low[kIndex], kAmxRowBytes);
  });
}

/// scores[q][column] of `queries` query vectors and so many expanded columns of K, without the
/// scales. `codes_of(i)`: where column i is expanded, `index` its place in the split.
template <class CodesOf>
HWY_INLINE void ScoreAmxColumns(const FixedQueries& of, uint32_t queries, size_t dim,
                                uint32_t count, const uint32_t* index, const CodesOf& codes_of,
                                float* scores) {
  const hn::RebindToFloat<SumTag> df;
  const auto* const high = reinterpret_cast<const int8_t*>(of.codes);
  const AmxFactors factors = {high, high + queries * of.stride, of.stride};
  const size_t steps = DivUp(dim, kAmxTerms);
  AmxSums sums;
  const auto score = [&]<int kTiles>(uint32_t c) QUIRE_INLINE {
    const int8_t* codes[kTiles];
    for (int i = 0; i < kTiles; ++i) codes[i] = codes_of(c + i);
    MultiplyAmx<kTiles>(factors, codes, steps, &sums);
    for (uint32_t q = 0; q < queries; ++q) {
      const auto unit = hn::Set(df, of.units[q]);
      QUIRE_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        float* const to = scores + q * kSplitTokens + index[c + i] * kColumnTokens;
        hn::Store(hn::Mul(hn::ConvertTo(df, sums.Of(i, q)), unit), df, to);
      }
    }
  };
  uint32_t c = 0;
  for (; c + kAmxTogether <= count; c += kAmxTogether) score.template operator()<kAmxTogether>(c);
  if (c < count) score.template operator()<1>(c);
}

/// As ScoreIntegerTile.
inline void ScoreAmxTile(const FixedQueries& queries, uint32_t rows, const int16_t* panels,
                         size_t dim, const Columns& columns, float* scores, AmxTiles* tiles) {
  tiles->Use(rows);
  const auto* const codes = reinterpret_cast<const int8_t*>(panels);
  ScoreAmxColumns(
      queries, rows, dim, columns.count, columns.index,
      [&](uint32_t c) { return codes + columns.index[c] * AmxKeyBytes(dim); }, scores);
}

/// out[q] += weights * values of one group of tokens, for `panels` panels of V whose tiles are
/// `panel_stride` bytes apart.
inline void WeighAmxGroup(const FixedWeights& weights, uint32_t group, uint32_t queries,
                          const int8_t* codes, size_t panel_stride, uint32_t panels, float* out,
                          size_t out_stride) {
  alignas(64) int8_t high[kAmxQueriesMax * kAmxTerms];
  alignas(64) int8_t low[kAmxQueriesMax * kAmxTerms];
  for (uint32_t q = 0; q < queries; ++q) {
    SplitNumbers(weights.codes + q * kSplitTokens + group * kGroupTokens, high + q * kAmxTerms,
                 low + q * kAmxTerms);
  }
  const AmxFactors factors = {high, low, kAmxTerms};
  AmxSums sums;
  const auto weigh = [&]<int kTiles>(uint32_t panel) QUIRE_INLINE {
    const int8_t* of_panel[kTiles];
    for (int i = 0; i < kTiles; ++i) of_panel[i] = codes + (panel + i) * panel_stride;
    MultiplyAmx<kTiles>(factors, of_panel, 1, &sums);
    for (uint32_t q = 0; q < queries; ++q) {
      const float unit = weights.units[q * FixedWeights::kGroups + group];
      QUIRE_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        const SumVec sum = sums.Of(i, q);
        AddGroup(&sum, unit, out + q * out_stride + (panel + i) * kPanelDims);
      }
    }
  };
  uint32_t panel = 0;
  for (; panel + kAmxTogether <= panels; panel += kAmxTogether) {
    weigh.template operator()<kAmxTogether>(panel);
  }
  if (panel < panels) weigh.template operator()<1>(panel);
}

/// As WeighIntegerTile.
inline void WeighAmxTile(const FixedWeights& weights, uint32_t rows, const int16_t* panels,
                         uint32_t panel_count, uint32_t first_group, uint32_t groups_end,
                         float* out, size_t out_stride, AmxTiles* tiles) {
  tiles->Use(rows);
  const auto* const codes = reinterpret_cast<const int8_t*>(panels);
  for (uint32_t g = first_group; g < groups_end; ++g) {
    WeighAmxGroup(weights, g, rows, codes + g * kAmxTileBytes, kAmxValueBytes, panel_count, out,
                  out_stride);
  }
}

/// As StreamIntegerScores.
template <Codec kCodec>
void StreamAmxScores(const FixedQueries& queries, const StreamView& key, const StreamView& value,
                     const Columns& columns, float* scores, AmxTiles* tiles) {
  const uint32_t streams = std::max(kStreams, key.block_columns);
  const GroupSlices slices(key.group, kAmxQueriesMax);
  alignas(64) int8_t expanded[kStreams * AmxKeyBytes(kDimMax)];
  for (uint32_t first = 0; first < columns.count; first += streams) {
    const uint32_t all = std::min(streams, columns.count - first);
    for (uint32_t head = 0; head < key.heads; ++head) {
      const size_t offset = head * key.head_stride_bytes;
      const std::byte* ahead[kColumnsPerSplit];
      PlanesAhead(key, value, columns, first, all, head, ahead);
      FetchKeyScales(key, columns, first, all, head);
      for (uint32_t some = 0; some < all; some += kStreams) {
        const uint32_t count = std::min(kStreams, all - some);
        for (uint32_t i = 0; i < count; ++i) {
          const std::byte* const codes = columns.key[first + some + i] + offset;
          ExpandAmxKeyColumn<kCodec>(codes, key.dim, expanded + i * AmxKeyBytes(key.dim),
                                     [&](size_t at) QUIRE_INLINE {
                                       FetchFar(ahead[some + i] + at);
                                       FetchNear(codes + key.head_stride_bytes + at);
                                     });
        }
        uint32_t q = head * key.group;
        for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
          tiles->Use(slices.size(slice));
          ScoreAmxColumns(
              queries.From(q), slices.size(slice), key.dim, count, columns.index + first + some,
              [&](uint32_t i) { return expanded + i * AmxKeyBytes(key.dim); },
              scores + size_t{q} * kSplitTokens);
        }
      }
    }
  }
}

/// As StreamIntegerValues.
template <Codec kCodec>
void StreamAmxValues(const Columns& columns, const StreamView& key, const StreamView& view,
                     const Columns* next, const FixedWeights& weights, float* out,
                     size_t out_stride, AmxTiles* tiles) {
  constexpr uint32_t kColumnsPerGroup = kGroupTokens / kColumnTokens;
  constexpr size_t kPanels = kValuesPerCode<kCodec>;
  constexpr size_t kBytes = codec::TileBytes(kCodec, codec::kTileLanes);
  const GroupSlices slices(view.group, kAmxQueriesMax);
  const auto panel_count = static_cast<uint32_t>(out_stride / kPanelDims);
  // Of missing columns it holds anything: their weights are zero.
  alignas(64) int8_t expanded[RoundUp(kDimMax, 2 * kPanelDims) * kGroupTokens];
  uint32_t end = 0;
  for (uint32_t c = 0; c < columns.count; c = end) {
    const uint32_t group = columns.index[c] / kColumnsPerGroup;
    while (end < columns.count && columns.index[end] / kColumnsPerGroup == group) ++end;
    for (uint32_t head = 0; head < view.heads; ++head) {
      for (uint32_t i = c; i < end; ++i) {
        const std::byte* codes = columns.value[i] + head * view.head_stride_bytes;
        const std::byte* ahead = ValueAhead(columns, i, head, key, view, c, end - c, next);
        const std::byte* then = i + 1 < end
                                    ? columns.value[i + 1] + head * view.head_stride_bytes
                                    : columns.value[c] + (head + 1) * view.head_stride_bytes;
        int8_t* to = expanded + columns.index[i] % kColumnsPerGroup * kAmxTileBytes / 4;
        for (size_t d = 0; d < view.dim; d += kPanels * kPanelDims) {
          ExpandAmxValueTile<kCodec>(codes, to, kAmxTileBytes, [&](size_t at) QUIRE_INLINE {
            FetchFar(ahead + at);
            FetchNear(then + at);
          });
          to += kPanels * kAmxTileBytes;
          codes += kBytes;
          ahead += kBytes;
          then += kBytes;
        }
      }
      uint32_t q = head * view.group;
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        tiles->Use(slices.size(slice));
        WeighAmxGroup(weights.From(q), group, slices.size(slice), expanded, kAmxTileBytes,
                      panel_count, out + size_t{q} * out_stride, out_stride);
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_AVX3_DL

#endif  // include guard

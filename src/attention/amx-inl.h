// Integer codes on matrix tiles (AMX): a tile holds 64 terms of sixteen lanes, tokens of K or
// channels of V, and one instruction multiplies them with as many numbers of up to sixteen query
// vectors. Sums are exact, so the bits are those of integer-inl.h. Queries and weights have sixteen
// bits, which are multiplied as a high byte with a sign and a low one without.
//
// A row of a tile has four terms of each lane. They stand in the order 0, 2, 1, 3, in which two
// pairs of 16-bit numbers become bytes without a permutation; the other factor has the same order.
#include "attention/ahead-inl.h"
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
static_assert(kAmxQueriesMax == kAmxRows);

// Which tile is what: sums of two tiles of codes, each with the high and with the low bytes; the
// bytes of queries or weights; codes.
inline constexpr int kHighSums = 0;
inline constexpr int kLowSums = 2;
inline constexpr int kHighBytes = 4;
inline constexpr int kLowBytes = 5;
inline constexpr int kCodeTiles = 6;
/// Tiles of codes that are multiplied together.
inline constexpr int kAmxTogether = 2;

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

/// Expands runs of steps of codes, kRuns that are equally long, a line of each in turn: a core gets
/// more from several pages than from one. fetch(run, at) is called for every line.
template <Codec kCodec, int kRuns, class Fetch>
  requires(kHasBytes<kCodec>)
HWY_INLINE void ExpandRows(const std::byte* const* codes, size_t steps, int8_t* const* to,
                           const Fetch& fetch) {
  const ByteTag d;
  const hn::Half<ByteTag> half;
  const __m512i order = LoadOrder(kInt8Order);
  const auto store = [&](ByteVec bytes, int8_t* row) QUIRE_INLINE {
    hn::Store(ByteVec{_mm512_permutexvar_epi8(order, bytes.raw)}, d, row);
  };
  size_t at = 0;
  for (; steps >= 2; steps -= 2, at += kAmxRowBytes) {
    QUIRE_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      fetch(run, at);
      store(hn::LoadU(d, reinterpret_cast<const int8_t*>(codes[run] + at)), to[run] + at);
    }
  }
  for (int run = 0; run < kRuns && steps != 0; ++run) {
    const auto last = hn::LoadU(half, reinterpret_cast<const int8_t*>(codes[run] + at));
    store(hn::ZeroExtendVector(d, last), to[run] + at);
  }
}

template <Codec kCodec, int kRuns, class Fetch>
  requires(kLayout<kCodec> == codec::CodeLayout::kNibbleTiles)
HWY_INLINE void ExpandRows(const std::byte* const* codes, size_t steps, int8_t* const* to,
                           const Fetch& fetch) {
  const ByteTag d;
  const hn::Half<ByteTag> half;
  const auto store = [&]<bool kBoth>(ByteVec bytes, int8_t* row) QUIRE_INLINE {
    const ByteVec low = LookUpLow(kIntegersOfNibbles<kCodec>, bytes);
    const ByteVec high = LookUpLow(kIntegersOfNibbles<kCodec>, HighNibbles(bytes));
    const ByteVec lanes_0_to_7 = Blend(low, BytesUp(high));
    const ByteVec lanes_8_to_15 = Blend(BytesDown(low), high);
    hn::Store(hn::LowerHalf(half, lanes_0_to_7), half, row);
    hn::Store(hn::LowerHalf(half, lanes_8_to_15), half, row + kAmxRowBytes / 2);
    if constexpr (kBoth) {
      hn::Store(hn::UpperHalf(half, lanes_0_to_7), half, row + kAmxRowBytes);
      hn::Store(hn::UpperHalf(half, lanes_8_to_15), half, row + kAmxRowBytes * 3 / 2);
    }
  };
  size_t at = 0;
  for (; steps >= 2; steps -= 2, at += kAmxRowBytes) {
    QUIRE_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      fetch(run, at);
      const auto bytes = hn::LoadU(d, reinterpret_cast<const int8_t*>(codes[run] + at));
      store.template operator()<true>(bytes, to[run] + 2 * at);
    }
  }
  for (int run = 0; run < kRuns && steps != 0; ++run) {
    const auto last = hn::LoadU(half, reinterpret_cast<const int8_t*>(codes[run] + at));
    store.template operator()<false>(hn::ZeroExtendVector(d, last), to[run] + 2 * at);
  }
}

/// Columns of K to rows of four channels. `fetch`: see ExpandRows.
template <Codec kCodec, int kColumns, class Fetch>
HWY_INLINE void ExpandAmxKeys(const std::byte* const* codes, size_t dim, int8_t* const* to,
                              const Fetch& fetch) {
  if constexpr (kHasPairs<kCodec>) {
    constexpr size_t kChannels = 2 * codec::kPairTileTerms;
    size_t at = 0;
    for (size_t d = 0; d < dim; d += kChannels, at += codec::kPairTileBytes) {
      for (int column = 0; column < kColumns; ++column) {
        for (size_t line = 0; line < codec::kPairTileBytes; line += kLineBytes) {
          fetch(column, at + line);
        }
        int8_t* row = to[column] + d * kColumnTokens;
        Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
          PairVecOf<1> pairs[kPairsPerStep<kCodec>][kVecsPerStep];
          LoadPairs<kCodec, kStep, 1, false>(&codes[column], at, pairs);
          QUIRE_UNROLL
          for (int p = 0; p < kPairsPerStep<kCodec>; p += 2, row += kAmxRowBytes) {
            StoreRow<kCodec>(pairs[p], pairs[p + 1], row);
          }
        });
      }
    }
  } else {
    ExpandRows<kCodec, kColumns>(codes, DivUp(dim, 2 * kPairsPerStep<kCodec>), to, fetch);
  }
}

/// The sixteen tokens of one tile of V to rows of four tokens, four for each panel of channels.
template <Codec kCodec, class Fetch>
HWY_INLINE void ExpandAmxValueTile(const std::byte* codes, int8_t* to, const Fetch& fetch) {
  if constexpr (kHasPairs<kCodec>) {
    for (size_t line = 0; line < codec::kPairTileBytes; line += kLineBytes) fetch(0, line);
    Repeat<kTileSteps<kCodec>>([&]<int kStep>() QUIRE_INLINE {
      PairVecOf<1> pairs[kPairsPerStep<kCodec>][kVecsPerStep];
      LoadPairs<kCodec, kStep, 1, false>(&codes, 0, pairs);
      int8_t* const row = to + kStep * kAmxRowBytes;
      StoreRow<kCodec>(pairs[0], pairs[2], row);
      StoreRow<kCodec>(pairs[1], pairs[3], row + kAmxTileBytes);
    });
  } else {
    ExpandRows<kCodec, 1>(&codes, kTileSteps<kCodec>, &to, fetch);
  }
}

/// Bytes of an expanded column of K, and of a group of tokens of V: a tile for each panel, with
/// room for both panels of the last codes.
constexpr size_t AmxKeyBytes(size_t dim) { return RoundUp(dim, kAmxTerms) * kColumnTokens; }
constexpr size_t AmxGroupBytes(size_t dim) { return RoundUp(dim, 2 * kPanelDims) * kGroupTokens; }
/// Where column `column` of a split begins in the tiles of its group.
constexpr size_t AmxColumnAt(uint32_t column) {
  return column % kColumnsPerGroup * (kAmxTileBytes / kColumnsPerGroup);
}

/// No line needs to be fetched.
struct FetchNothing {
  void operator()(int, size_t) const {}
};

template <Codec kCodec>
void ExpandAmxKey(const std::byte* codes, size_t dim, uint32_t column, int16_t* panels) {
  int8_t* const to = reinterpret_cast<int8_t*>(panels) + column * AmxKeyBytes(dim);
  ExpandAmxKeys<kCodec, 1>(&codes, dim, &to, FetchNothing());
}

template <Codec kCodec>
void ExpandAmxValue(const std::byte* codes, size_t dim, uint32_t column, int16_t* panels) {
  constexpr size_t kPanels = kValuesPerCode<kCodec>;
  int8_t* to = reinterpret_cast<int8_t*>(panels) + column / kColumnsPerGroup * AmxGroupBytes(dim) +
               AmxColumnAt(column);
  for (size_t d = 0; d < dim; d += kPanels * kPanelDims) {
    ExpandAmxValueTile<kCodec>(codes, to, FetchNothing());
    to += kPanels * kAmxTileBytes;
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
  alignas(64) int32_t high[kAmxTogether][kAmxQueriesMax * kSumLanes];
  alignas(64) int32_t low[kAmxTogether][kAmxQueriesMax * kSumLanes];

  HWY_INLINE SumVec Of(size_t tile, size_t query) const {
    const SumTag d;
    const SumVec of_high = hn::Load(d, high[tile] + query * kSumLanes);
    return hn::Add(hn::ShiftLeft<8>(of_high), hn::Load(d, low[tile] + query * kSumLanes));
  }
};

/// Multiplies tiles and hands their sums to an Output{tiles, Write<tiles>(sums)}. A product takes
/// tens of cycles, so those of the tiles before go to their output meanwhile.
template <class Output>
class AmxProducts {
 public:
  /// The products of all query vectors with output.tiles runs of tiles of codes, `steps` each.
  HWY_INLINE void Take(const AmxFactors& factors, const int8_t* const* codes, size_t steps,
                       const Output& output) {
    if (output.tiles == kAmxTogether) {
      TakeTiles<kAmxTogether>(factors, codes, steps, output);
    } else {
      TakeTiles<1>(factors, codes, steps, output);
    }
  }

  /// After the last Take.
  HWY_INLINE void End() {
    WriteWaiting();
    waiting_ = {};
  }

 private:
  template <int kTiles>
  HWY_INLINE void TakeTiles(const AmxFactors& factors, const int8_t* const* codes, size_t steps,
                            const Output& output) {
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
    WriteWaiting();
    AmxSums& sums = sums_[next_];
    Repeat<kTiles>([&]<int kIndex>() QUIRE_INLINE {
      StoreAmxTile<kHighSums + kIndex>(sums.high[kIndex], kAmxRowBytes);
      StoreAmxTile<kLowSums + kIndex>(sums.low[kIndex], kAmxRowBytes);
    });
    waiting_ = output;
    next_ ^= 1;
  }

  HWY_INLINE void WriteWaiting() const {
    const AmxSums& sums = sums_[next_ ^ 1];
    if (waiting_.tiles == kAmxTogether) {
      waiting_.template Write<kAmxTogether>(sums);
    } else if (waiting_.tiles != 0) {
      waiting_.template Write<1>(sums);
    }
  }

  AmxSums sums_[2];
  Output waiting_{};
  uint32_t next_ = 0;
};

/// What is fetched with each query vector that is written.
struct LinesShare {
  HWY_INLINE void Fetch() const {
    if (lines != 0) ahead->Fetch(lines);
  }

  LinesAhead* ahead = nullptr;
  uint32_t lines = 0;
};

/// Scores of expanded columns, without the scales.
struct AmxScores {
  template <int kTiles>
  HWY_INLINE void Write(const AmxSums& sums) const {
    const hn::RebindToFloat<SumTag> df;
    const size_t count = queries;
    const float* const unit_of = units;
    float* rows[kTiles];
    std::copy_n(to, kTiles, rows);
    for (size_t q = 0; q < count; ++q) {
      ahead.Fetch();
      const auto unit = hn::Set(df, unit_of[q]);
      QUIRE_UNROLL
      for (size_t i = 0; i < kTiles; ++i, rows[i - 1] += kSplitTokens) {
        hn::Store(hn::Mul(hn::ConvertTo(df, sums.Of(i, q)), unit), df, rows[i]);
      }
    }
  }

  uint32_t tiles = 0;
  uint32_t queries = 0;
  const float* units = nullptr;
  float* to[kAmxTogether] = {};  // of the first query vector
  LinesShare ahead;
};

/// Scores of `queries` query vectors and so many columns of K at `codes`.
HWY_INLINE void ScoreAmxColumns(const FixedQueries& of, uint32_t queries, size_t dim,
                                uint32_t count, const uint32_t* index, const int8_t* const* codes,
                                float* scores, const LinesShare& ahead,
                                AmxProducts<AmxScores>* products) {
  const auto* const high = reinterpret_cast<const int8_t*>(of.codes);
  const AmxFactors factors = {high, high + queries * of.stride, of.stride};
  for (uint32_t c = 0; c < count; c += kAmxTogether) {
    AmxScores output = {std::min<uint32_t>(kAmxTogether, count - c), queries, of.units};
    for (uint32_t i = 0; i < output.tiles; ++i) {
      output.to[i] = scores + index[c + i] * kColumnTokens;
    }
    output.ahead = ahead;
    products->Take(factors, codes + c, DivUp(dim, kAmxTerms), output);
  }
}

/// As ScoreIntegerTile.
inline void ScoreAmxTile(const FixedQueries& queries, uint32_t rows, const int16_t* panels,
                         size_t dim, const Columns& columns, float* scores, AmxTiles* tiles) {
  tiles->Use(rows);
  const int8_t* codes[kColumnsPerSplit];
  for (uint32_t c = 0; c < columns.count; ++c) {
    codes[c] = reinterpret_cast<const int8_t*>(panels) + columns.index[c] * AmxKeyBytes(dim);
  }
  AmxProducts<AmxScores> products;
  ScoreAmxColumns(queries, rows, dim, columns.count, columns.index, codes, scores, {}, &products);
  products.End();
}

/// Weighted values of one group of tokens for neighbouring panels, which join `out`.
struct AmxValues {
  template <int kTiles>
  HWY_INLINE void Write(const AmxSums& sums) const {
    const hn::RebindToFloat<SumTag> df;
    const size_t count = queries;
    const size_t stride = out_stride;
    const float* const unit_of = units;
    float* row = out;
    for (size_t q = 0; q < count; ++q, row += stride) {
      ahead.Fetch();
      const auto unit = hn::Set(df, unit_of[q * FixedWeights::kGroups]);
      QUIRE_UNROLL
      for (size_t i = 0; i < kTiles; ++i) {
        float* const channels = row + i * kPanelDims;
        const auto sum = hn::ConvertTo(df, sums.Of(i, q));
        hn::Store(hn::MulAdd(sum, unit, hn::Load(df, channels)), df, channels);
      }
    }
  }

  uint32_t tiles = 0;
  uint32_t queries = 0;
  const float* units = nullptr;  // of the group
  float* out = nullptr;
  size_t out_stride = 0;
  LinesShare ahead;
};

/// High and low bytes of a group's weights.
inline constexpr size_t kAmxWeightBytes = 2 * kAmxQueriesMax * kAmxTerms;

/// out[q] += weights * values of one group of tokens, for `panels` panels of V, a tile each at
/// `codes`. `bytes` has room for kAmxWeightBytes.
inline void WeighAmxGroup(const FixedWeights& weights, uint32_t group, uint32_t queries,
                          const int8_t* codes, uint32_t panels, float* out, size_t out_stride,
                          int8_t* bytes, const LinesShare& ahead,
                          AmxProducts<AmxValues>* products) {
  const AmxFactors factors = {bytes, bytes + queries * kAmxTerms, kAmxTerms};
  for (uint32_t q = 0; q < queries; ++q) {
    SplitNumbers(weights.codes + q * kSplitTokens + group * kGroupTokens, bytes + q * kAmxTerms,
                 bytes + (queries + q) * kAmxTerms);
  }
  for (uint32_t panel = 0; panel < panels; panel += kAmxTogether) {
    const uint32_t count = std::min<uint32_t>(kAmxTogether, panels - panel);
    const int8_t* of_panel[kAmxTogether];
    for (uint32_t i = 0; i < count; ++i) of_panel[i] = codes + (panel + i) * kAmxTileBytes;
    products->Take(
        factors, of_panel, 1,
        {count, queries, weights.units + group, out + panel * kPanelDims, out_stride, ahead});
  }
}

/// As WeighIntegerTile.
inline void WeighAmxTile(const FixedWeights& weights, uint32_t rows, const int16_t* panels,
                         uint32_t panel_count, uint32_t first_group, uint32_t groups_end,
                         float* out, size_t out_stride, AmxTiles* tiles) {
  tiles->Use(rows);
  const auto* const codes = reinterpret_cast<const int8_t*>(panels);
  alignas(64) int8_t bytes[kAmxWeightBytes];
  AmxProducts<AmxValues> products;
  for (uint32_t g = first_group; g < groups_end; ++g) {
    WeighAmxGroup(weights, g, rows, codes + g * AmxGroupBytes(out_stride), panel_count, out,
                  out_stride, bytes, {}, &products);
  }
  products.End();
}

/// Scores take one of four shares of a split's lines, values one of two, by the time that each
/// takes (LinesAhead has the share of softmax).
inline constexpr uint32_t kScoreShares = 4;
inline constexpr uint32_t kValueShares = 2;

/// One of `shares` of the lines, spread over so many products of `queries` query vectors.
inline LinesShare ShareOf(LinesAhead* ahead, uint32_t shares, uint32_t products, uint32_t queries) {
  return {ahead, DivUp(ahead->lines() / shares, std::max(1u, products * queries))};
}

/// As StreamIntegerScores.
template <Codec kCodec>
void StreamAmxScores(const FixedQueries& queries, const StreamView& key, const StreamView&,
                     const Columns& columns, float* scores, AmxTiles* tiles, LinesAhead* ahead) {
  const uint32_t streams = std::max(kStreams, key.block_columns);
  const GroupSlices slices(key.group, kAmxQueriesMax);
  const LinesShare share =
      ShareOf(ahead, kScoreShares, DivUp(columns.count, kAmxTogether) * key.heads, key.group);
  alignas(64) int8_t expanded[kStreams * AmxKeyBytes(kDimMax)];
  int8_t* to[kStreams];
  for (uint32_t i = 0; i < kStreams; ++i) to[i] = expanded + i * AmxKeyBytes(key.dim);
  AmxProducts<AmxScores> products;
  for (uint32_t first = 0; first < columns.count; first += streams) {
    const uint32_t end = std::min(first + streams, columns.count);
    for (uint32_t head = 0; head < key.heads; ++head) {
      FetchKeyScales(key, columns, first, end - first, head);
      for (uint32_t c = first; c < end; c += kStreams) {
        const uint32_t count = std::min(kStreams, end - c);
        const std::byte* codes[kStreams];
        for (uint32_t i = 0; i < count; ++i) {
          codes[i] = columns.key[c + i] + head * key.head_stride_bytes;
        }
        const auto expand = [&]<int kColumns>(uint32_t i) QUIRE_INLINE {
          ExpandAmxKeys<kCodec, kColumns>(
              codes + i, key.dim, to + i, [&](int column, size_t at) QUIRE_INLINE {
                FetchNear(codes[i + column] + key.head_stride_bytes + at);
              });
        };
        if (count == kStreams) {
          expand.template operator()<kStreams>(0);
        } else {
          for (uint32_t i = 0; i < count; ++i) expand.template operator()<1>(i);
        }
        uint32_t q = head * key.group;
        for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
          tiles->Use(slices.size(slice));
          ScoreAmxColumns(queries.From(q), slices.size(slice), key.dim, count, columns.index + c,
                          to, scores + size_t{q} * kSplitTokens, share, &products);
        }
      }
    }
  }
  products.End();
}

/// As StreamIntegerValues.
template <Codec kCodec>
void StreamAmxValues(const Columns& columns, const StreamView&, const StreamView& view,
                     const Columns*, const FixedWeights& weights, float* out, size_t out_stride,
                     AmxTiles* tiles, LinesAhead* ahead) {
  constexpr size_t kPanels = kValuesPerCode<kCodec>;
  constexpr size_t kBytes = codec::TileBytes(kCodec, codec::kTileLanes);
  const GroupSlices slices(view.group, kAmxQueriesMax);
  const auto panels = static_cast<uint32_t>(out_stride / kPanelDims);
  const uint32_t groups = DivUp(columns.count, kColumnsPerGroup);
  const LinesShare share =
      ShareOf(ahead, kValueShares, groups * view.heads * DivUp(panels, kAmxTogether), view.group);
  // Of missing columns it holds anything: their weights are zero.
  alignas(64) int8_t expanded[AmxGroupBytes(kDimMax)];
  alignas(64) int8_t bytes[kAmxWeightBytes];
  AmxProducts<AmxValues> products;
  uint32_t end = 0;
  for (uint32_t c = 0; c < columns.count; c = end) {
    const uint32_t group = columns.index[c] / kColumnsPerGroup;
    while (end < columns.count && columns.index[end] / kColumnsPerGroup == group) ++end;
    for (uint32_t head = 0; head < view.heads; ++head) {
      size_t at = head * view.head_stride_bytes;
      int8_t* to = expanded;
      for (size_t d = 0; d < view.dim; d += kPanels * kPanelDims) {
        for (uint32_t i = c; i < end; ++i) {
          const std::byte* const then =
              i + 1 < end ? columns.value[i + 1] : columns.value[c] + view.head_stride_bytes;
          ExpandAmxValueTile<kCodec>(columns.value[i] + at, to + AmxColumnAt(columns.index[i]),
                                     [&](int, size_t line)
                                         QUIRE_INLINE { FetchNear(then + at + line); });
        }
        to += kPanels * kAmxTileBytes;
        at += kBytes;
      }
      uint32_t q = head * view.group;
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        tiles->Use(slices.size(slice));
        WeighAmxGroup(weights.From(q), group, slices.size(slice), expanded, panels,
                      out + size_t{q} * out_stride, out_stride, bytes, share, &products);
      }
    }
  }
  products.End();
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_AVX3_DL

#endif  // include guard

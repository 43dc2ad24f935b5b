// Integer codes of docs/codecs.md to pairs of 16-bit numbers, whose products one instruction
// multiplies and adds: two channels of a token of K, two tokens of a channel of V. A step of a tile
// (codec/planes.h) is a vector of 256 bits; where vectors have 512, steps of two tiles are read
// together that are multiplied with the same factors.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_INTEGER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_INTEGER_INL_H_
#undef QUIRE_ATTENTION_INTEGER_INL_H_
#else
#define QUIRE_ATTENTION_INTEGER_INL_H_
#endif

#include <cstring>

#include "codec/formats.h"
#include "codec/planes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

template <int kTiles>
using PairTagOf = hn::FixedTag<int16_t, 16 * kTiles>;
template <int kTiles>
using PairVecOf = hn::Vec<PairTagOf<kTiles>>;
/// Bytes of a step.
template <int kTiles>
using StepTagOf = hn::FixedTag<int8_t, codec::kStepBytes * kTiles>;
template <int kTiles>
using StepVecOf = hn::Vec<StepTagOf<kTiles>>;

/// Tiles that fill a vector.
inline constexpr int kTilesPerVec = kVecLanes >= 16 ? 2 : 1;
using PairTag = PairTagOf<kTilesPerVec>;
using PairVec = PairVecOf<kTilesPerVec>;
using SumTag = hn::FixedTag<int32_t, 8 * kTilesPerVec>;
using SumVec = hn::Vec<SumTag>;
/// Sums of a vector: tokens of K, channels of V.
inline constexpr size_t kSumLanes = hn::MaxLanes(SumTag());
/// Vectors of sixteen tokens, or channels.
inline constexpr size_t kVecsPerSixteen = codec::kTileLanes / kSumLanes;
/// Vectors of the tiles that are read together, on every target.
inline constexpr int kVecsPerStep = 2;
/// Numbers of sixteen tokens, or channels.
inline constexpr size_t kSixteenPairs = 2 * 16;

/// sum[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1].
HWY_INLINE SumVec AddProducts(PairVec a, PairVec b, SumVec sum) {
#if HWY_TARGET == HWY_AVX3_DL
  // Highway 1.0 compiles this target for AVX-VNNI, which not every processor that it is run on has:
  // the intrinsic would not do. The processor has AVX512-VNNI.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#else
  SumVec unused = hn::Zero(SumTag());
  sum = hn::ReorderWidenMulAccumulate(SumTag(), a, b, sum, unused);
  // g++ adds the products of several steps before it adds them to the sums, and runs out of
  // registers: it may not look through this.
  asm("" : "+v"(sum.raw));
  return sum;
#endif
}

/// The same two numbers in every lane.
HWY_INLINE PairVec SetPair(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return hn::BitCast(PairTag(), hn::Set(SumTag(), both));
}

/// Codes of half a byte become numbers of seven bits without a sign: a code's integer is
/// kStride<kCodec> times that, less kBias<kCodec>. Two of them in sixteen bits are a number too,
/// low + 256 * high, and need not be parted before they are multiplied: sums of products with it,
/// less 256 times those with the high ones, are those with the low ones. On the way sums may wrap
/// around; they end as they should.
template <Codec kCodec>
inline constexpr int32_t kBias = codec::FormatOf<kCodec>::kBias;
template <Codec kCodec>
inline constexpr codec::CodeLayout kLayout = codec::FormatOf<kCodec>::kLayout;
template <Codec kCodec>
inline constexpr bool kHasPairs = kLayout<kCodec> == codec::CodeLayout::kPairTiles;
template <Codec kCodec>
inline constexpr bool kHasBytes = kLayout<kCodec> == codec::CodeLayout::kByteTiles;
template <Codec kCodec>
inline constexpr int32_t kStride = kHasPairs<kCodec> ? 2 : 1;

template <int kTiles>
HWY_INLINE StepVecOf<kTiles> LoadStep(const std::byte* const* tiles, size_t at) {
  const StepTagOf<1> d;
  const auto first = hn::LoadU(d, reinterpret_cast<const int8_t*>(tiles[0] + at));
  if constexpr (kTiles == 1) {
    return first;
  } else {
    const auto second = hn::LoadU(d, reinterpret_cast<const int8_t*>(tiles[1] + at));
    return hn::Combine(StepTagOf<kTiles>(), second, first);
  }
}
/// What codes become, by the integers they stand for.
template <Codec kCodec>
constexpr codec::IntegerTable SevenBits(const codec::IntegerTable& whole) {
  codec::IntegerTable numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<int8_t>((whole[i] + kBias<kCodec>) / kStride<kCodec>);
  }
  return numbers;
}
template <Codec kCodec>
inline constexpr codec::IntegerTable kTable = SevenBits<kCodec>(codec::FormatOf<kCodec>::kIntegers);
inline constexpr auto kFirstTable = SevenBits<Codec::kQ25>(codec::kPairFirstIntegers);
inline constexpr auto kSecondTable = SevenBits<Codec::kQ25>(codec::kPairSecondIntegers);

/// What stands in the table at the low nibbles of `codes`; the high ones may be anything.
template <class V>
HWY_INLINE V LookUpLow(const codec::IntegerTable& table, V codes) {
  const hn::DFromV<V> d;
#if HWY_TARGET == HWY_AVX3_DL
  // Looks at six bits, so the table stands there four times.
  if constexpr (hn::MaxLanes(hn::DFromV<V>()) == 64) {
    return V{_mm512_permutexvar_epi8(codes.raw, hn::LoadDup128(d, table.data()).raw)};
  }
#endif
  const V low = hn::And(codes, hn::Set(d, int8_t{15}));
  return hn::TableLookupBytes(hn::LoadDup128(d, table.data()), low);
}

/// The high nibbles of bytes, as low ones.
template <class V>
HWY_INLINE V HighNibbles(V bytes) {
  const hn::Repartition<uint16_t, hn::DFromV<V>> d16;
  return hn::BitCast(hn::DFromV<V>(), hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
}

/// Two terms of every lane, from bytes without a sign: lanes 0 to 7 of each tile, lanes 8 to 15. If
/// kJoined the first ones have 256 times the second ones in them.
template <int kTiles, bool kJoined>
HWY_INLINE void Widen(StepVecOf<kTiles> bytes, PairVecOf<kTiles>* to) {
  const hn::Repartition<uint16_t, StepTagOf<kTiles>> d16;
  const auto both = hn::BitCast(d16, bytes);
  const auto first = kJoined ? both : hn::And(both, hn::Set(d16, uint16_t{0xff}));
  to[0] = hn::BitCast(PairTagOf<kTiles>(), first);
  to[1] = hn::BitCast(PairTagOf<kTiles>(), hn::ShiftRight<8>(both));
}

/// Two terms of int8: of one tile lanes 0 to 7, lanes 8 to 15; of two each has a vector.
template <int kTiles>
HWY_INLINE void LoadBytePairs(const std::byte* const* tiles, size_t at, PairVecOf<kTiles>* to) {
  const hn::FixedTag<int8_t, 16 * kTiles> d;
  QUIRE_UNROLL
  for (int v = 0; v < kVecsPerStep; ++v) {
    const std::byte* const from = kTiles == 1 ? tiles[0] + at + v * 16 : tiles[v] + at;
    to[v] = hn::PromoteTo(PairTagOf<kTiles>(), hn::LoadU(d, reinterpret_cast<const int8_t*>(from)));
  }
}

/// The numbers of the low nibbles of bytes; the high ones may be anything.
template <Codec kCodec, class V>
HWY_INLINE V NumbersOf(V codes) {
  if constexpr (requires { codec::FormatOf<kCodec>::kIntegers; }) {
    return LookUpLow(kTable<kCodec>, codes);
  } else {
    return hn::And(codes, hn::Set(hn::DFromV<V>(), int8_t{15}));
  }
}

/// Four terms of codes of half a byte, two by two.
template <Codec kCodec, int kTiles, bool kJoined>
HWY_INLINE void LoadNibblePairs(const std::byte* const* tiles, size_t at,
                                PairVecOf<kTiles> (*to)[kVecsPerStep]) {
  const auto bytes = LoadStep<kTiles>(tiles, at);
  Widen<kTiles, kJoined>(NumbersOf<kCodec>(bytes), to[0]);
  Widen<kTiles, kJoined>(NumbersOf<kCodec>(HighNibbles(bytes)), to[1]);
}

/// Terms of one code of q25, two by two: of half kHalf of a tile's eight halves of a step. `codes`
/// has the half low, `signs` are the tile's.
template <int kHalf, int kTiles, bool kJoined>
HWY_INLINE void PointPairs(StepVecOf<kTiles> codes, StepVecOf<kTiles> signs,
                           PairVecOf<kTiles>* first, PairVecOf<kTiles>* second) {
  const StepTagOf<kTiles> d;
  const hn::Repartition<uint16_t, StepTagOf<kTiles>> d16;
  // Bit kHalf of every byte becomes its highest; what else the shift brings does not matter.
  const auto high = hn::BitCast(d, hn::ShiftLeft<7 - kHalf>(hn::BitCast(d16, signs)));
  const auto negated = hn::IfThenElseZero(hn::Lt(high, hn::Zero(d)), hn::Set(d, int8_t{127}));
  Widen<kTiles, kJoined>(hn::Xor(LookUpLow(kFirstTable, codes), negated), first);
  Widen<kTiles, kJoined>(hn::Xor(LookUpLow(kSecondTable, codes), negated), second);
}

/// f.operator()<0>() to f.operator()<kTimes - 1>(), with no loop around them.
template <int kTimes, class F>
HWY_INLINE void Repeat(const F& f) {
  if constexpr (kTimes > 1) Repeat<kTimes - 1>(f);
  f.template operator()<kTimes - 1>();
}

/// Steps of sixteen terms.
template <Codec kCodec>
inline constexpr int kTileSteps = kHasBytes<kCodec> ? 8 : 4;

/// Values that a code stands for: channels in q25.
template <Codec kCodec>
inline constexpr int kValuesPerCode = kHasPairs<kCodec> ? 2 : 1;

/// Pairs of values of a lane in a step.
template <Codec kCodec>
inline constexpr int kPairsPerStep = kHasBytes<kCodec> ? 1 : 2 * kValuesPerCode<kCodec>;

/// Step kStep of the tiles at `tiles` + at. Of K: its pairs of channels, ascending. Of V: its pairs
/// of tokens; in q25 each of the first channels, then of the second ones. TileLanes tells which
/// tile the lanes belong to.
template <Codec kCodec, int kStep, int kTiles, bool kJoined>
HWY_INLINE void LoadPairs(const std::byte* const* tiles, size_t at,
                          PairVecOf<kTiles> (*to)[kVecsPerStep]) {
  const size_t step = at + kStep * codec::kStepBytes;
  if constexpr (kHasBytes<kCodec>) {
    LoadBytePairs<kTiles>(tiles, step, to[0]);
  } else if constexpr (kHasPairs<kCodec>) {
    const auto signs = LoadStep<kTiles>(tiles, at + 4 * codec::kStepBytes);
    const auto bytes = LoadStep<kTiles>(tiles, step);
    PointPairs<2 * kStep, kTiles, kJoined>(bytes, signs, to[0], to[1]);
    PointPairs<2 * kStep + 1, kTiles, kJoined>(HighNibbles(bytes), signs, to[2], to[3]);
  } else {
    LoadNibblePairs<kCodec, kTiles, kJoined>(tiles, step, to);
  }
}

/// Of the sums over a step's pairs, joined where they may be, those over integers of its tile
/// kTile, lane by lane. `bias_terms` is -kBias times the sum of the other factors.
template <Codec kCodec, int kTile>
HWY_INLINE void TileLanes(const SumVec* step_sums, int32_t bias_terms, SumVec* lanes) {
  SumVec sums[kVecsPerStep] = {step_sums[0], step_sums[1]};
  if constexpr (kBias<kCodec> != 0) {
    const SumVec start = hn::Set(SumTag(), bias_terms);
    sums[0] = hn::Sub(sums[0], hn::ShiftLeft<8>(sums[1]));
    QUIRE_UNROLL
    for (SumVec& sum : sums) sum = hn::Add(kStride<kCodec> == 2 ? hn::Add(sum, sum) : sum, start);
  }
  if constexpr (kTilesPerVec == 1) {
    lanes[0] = sums[0];
    lanes[1] = sums[1];
  } else if constexpr (kHasBytes<kCodec>) {
    lanes[0] = sums[kTile];
  } else if constexpr (kTile == 0) {
    lanes[0] = hn::ConcatLowerLower(SumTag(), sums[1], sums[0]);
  } else {
    lanes[0] = hn::ConcatUpperUpper(SumTag(), sums[1], sums[0]);
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

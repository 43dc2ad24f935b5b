// Whole-number codes of docs/codecs.md to pairs of 16-bit numbers, whose products one instruction
// multiplies and adds: two channels of a token of K, two tokens of a channel of V. In vectors of
// 256 bits on every target, which is a step of a tile (codec/planes.h).
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_WHOLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_WHOLE_INL_H_
#undef QUIRE_ATTENTION_WHOLE_INL_H_
#else
#define QUIRE_ATTENTION_WHOLE_INL_H_
#endif

#include <cstring>

#include "codec/formats.h"
#include "codec/planes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

using PairTag = hn::FixedTag<int16_t, 16>;
using PairVec = hn::Vec<PairTag>;
using SumTag = hn::FixedTag<int32_t, 8>;
using SumVec = hn::Vec<SumTag>;
/// Sums of a vector: tokens of K, channels of V.
inline constexpr size_t kSumLanes = hn::MaxLanes(SumTag());
/// Vectors of sixteen tokens, or channels.
inline constexpr size_t kVecsPerSixteen = codec::kTileLanes / kSumLanes;
/// Numbers of sixteen tokens, or channels.
inline constexpr size_t kSixteenPairs = 2 * 16;

/// Bytes of a step.
using StepTag = hn::FixedTag<int8_t, codec::kStepBytes>;
using StepVec = hn::Vec<StepTag>;

/// sum[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1].
HWY_INLINE SumVec AddProducts(PairVec a, PairVec b, SumVec sum) {
#if HWY_TARGET <= HWY_AVX3_DL
  return SumVec{_mm256_dpwssd_epi32(sum.raw, a.raw, b.raw)};
#else
  SumVec unused = hn::Zero(SumTag());
  sum = hn::ReorderWidenMulAccumulate(SumTag(), a, b, sum, unused);
  // g++ adds the products of several steps before it adds them to the sums, and runs out of
  // registers: it may not look through this.
  asm("" : "+x"(sum.raw));
  return sum;
#endif
}

/// The same two numbers in every lane.
HWY_INLINE PairVec SetPair(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return hn::BitCast(PairTag(), hn::Set(SumTag(), both));
}

/// Codes of half a byte come out this much too large, so that their bytes have no sign to extend:
/// sums start as much lower. On the way they may wrap around; they end as they should.
template <Codec kCodec>
inline constexpr int32_t kExcess = kCodec == Codec::kInt8 ? 0 : 128;

HWY_INLINE StepVec LoadStep(const std::byte* from) {
  return hn::LoadU(StepTag(), reinterpret_cast<const int8_t*>(from));
}
HWY_INLINE StepVec LowNibbles(StepVec bytes) {
  return hn::And(bytes, hn::Set(StepTag(), int8_t{15}));
}
HWY_INLINE StepVec HighNibbles(StepVec bytes) {
  const hn::Repartition<uint16_t, StepTag> d16;
  return LowNibbles(hn::BitCast(StepTag(), hn::ShiftRight<4>(hn::BitCast(d16, bytes))));
}

/// Whole numbers plus 128, as bytes without a sign.
constexpr codec::WholeTable WithExcess(const codec::WholeTable& table) {
  codec::WholeTable raised{};
  for (size_t i = 0; i < raised.size(); ++i) raised[i] = static_cast<int8_t>(table[i] ^ -128);
  return raised;
}
template <Codec kCodec>
inline constexpr codec::WholeTable kTable = WithExcess(kCodec == Codec::kInt4  ? codec::kInt4Whole
                                                       : kCodec == Codec::kNf4 ? codec::kNf4Whole
                                                                               : codec::kFp4Whole);
inline constexpr codec::WholeTable kFirstTable = WithExcess(codec::kPairFirstWhole);
inline constexpr codec::WholeTable kSecondTable = WithExcess(codec::kPairSecondWhole);

HWY_INLINE StepVec LookUp(const codec::WholeTable& table, StepVec codes) {
  return hn::TableLookupBytes(hn::LoadDup128(StepTag(), table.data()), codes);
}

/// Two terms of sixteen lanes, from bytes without a sign: lanes 0 to 7, lanes 8 to 15.
HWY_INLINE void Widen(StepVec bytes, PairVec* to) {
  const hn::Repartition<uint16_t, StepTag> d16;
  const auto both = hn::BitCast(d16, bytes);
  to[0] = hn::BitCast(PairTag(), hn::And(both, hn::Set(d16, uint16_t{0xff})));
  to[1] = hn::BitCast(PairTag(), hn::ShiftRight<8>(both));
}

/// Two terms of int8.
HWY_INLINE void LoadBytePairs(const std::byte* step, PairVec* to) {
  const hn::FixedTag<int8_t, 16> d;
  const auto* const from = reinterpret_cast<const int8_t*>(step);
  to[0] = hn::PromoteTo(PairTag(), hn::LoadU(d, from));
  to[1] = hn::PromoteTo(PairTag(), hn::LoadU(d, from + 16));
}

/// Four terms of codes of half a byte, two by two.
template <Codec kCodec>
HWY_INLINE void LoadNibblePairs(const std::byte* step, PairVec (*to)[kVecsPerSixteen]) {
  const StepVec bytes = LoadStep(step);
  Widen(LookUp(kTable<kCodec>, LowNibbles(bytes)), to[0]);
  Widen(LookUp(kTable<kCodec>, HighNibbles(bytes)), to[1]);
}

/// Terms of one code of q25, two by two: of half kHalf of a tile's eight halves of a step. `codes`
/// are the half's, `signs` the tile's.
template <int kHalf>
HWY_INLINE void PointPairs(StepVec codes, StepVec signs, PairVec* first, PairVec* second) {
  const StepTag d;
  const hn::Repartition<uint16_t, StepTag> d16;
  // Bit kHalf of every byte becomes its highest; what else the shift brings does not matter.
  const StepVec high = hn::BitCast(d, hn::ShiftLeft<7 - kHalf>(hn::BitCast(d16, signs)));
  const StepVec negated = hn::VecFromMask(d, hn::Lt(high, hn::Zero(d)));
  // 127 - x for 128 + x, and one more.
  Widen(hn::Sub(hn::Xor(LookUp(kFirstTable, codes), negated), negated), first);
  Widen(hn::Sub(hn::Xor(LookUp(kSecondTable, codes), negated), negated), second);
}

/// f.operator()<0>() to f.operator()<kTimes - 1>(), with no loop around them.
template <int kTimes, class F>
HWY_INLINE void Repeat(const F& f) {
  if constexpr (kTimes > 1) Repeat<kTimes - 1>(f);
  f.template operator()<kTimes - 1>();
}

/// Steps of sixteen terms.
template <Codec kCodec>
inline constexpr int kTileSteps = kCodec == Codec::kInt8 ? 8 : 4;

/// Values that a code stands for: channels in q25.
template <Codec kCodec>
inline constexpr int kValuesPerCode = kCodec == Codec::kQ25 ? 2 : 1;

/// Pairs of values of a lane in a step.
template <Codec kCodec>
inline constexpr int kPairsPerStep = kCodec == Codec::kInt8 ? 1 : 2 * kValuesPerCode<kCodec>;

/// Step kStep of a tile. Of K: its pairs of channels, ascending. Of V: its pairs of tokens; in q25
/// each of the first channels, then of the second ones.
template <Codec kCodec, int kStep>
HWY_INLINE void LoadPairs(const std::byte* tile, PairVec (*to)[kVecsPerSixteen]) {
  const std::byte* step = tile + kStep * codec::kStepBytes;
  if constexpr (kCodec == Codec::kInt8) {
    LoadBytePairs(step, to[0]);
  } else if constexpr (kCodec == Codec::kQ25) {
    const StepVec signs = LoadStep(tile + 4 * codec::kStepBytes);
    const StepVec bytes = LoadStep(step);
    PointPairs<2 * kStep>(LowNibbles(bytes), signs, to[0], to[1]);
    PointPairs<2 * kStep + 1>(HighNibbles(bytes), signs, to[2], to[3]);
  } else {
    LoadNibblePairs<kCodec>(step, to);
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

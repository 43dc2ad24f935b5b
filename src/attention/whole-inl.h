// Whole-number codes of docs/codecs.md to pairs of 16-bit numbers, whose products one instruction
// multiplies and adds: two channels of a token of K, two tokens of a channel of V. In vectors of
// 256 bits on every target: planes have such pairs by sixteens.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_WHOLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_WHOLE_INL_H_
#undef QUIRE_ATTENTION_WHOLE_INL_H_
#else
#define QUIRE_ATTENTION_WHOLE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "codec/formats.h"
#include "codec/planes.h"
#include "codec/token_codec.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

using PairTag = hn::FixedTag<int16_t, 16>;
using PairVec = hn::Vec<PairTag>;
using SumTag = hn::FixedTag<int32_t, 8>;
using SumVec = hn::Vec<SumTag>;
/// Sums of a vector: tokens of K, channels of V.
inline constexpr size_t kSumLanes = hn::MaxLanes(SumTag());
/// Vectors of sixteen tokens, or channels.
inline constexpr size_t kVecsPerSixteen = 16 / kSumLanes;
/// Numbers of sixteen tokens, or channels.
inline constexpr size_t kSixteenPairs = 2 * 16;

using ByteTag = hn::FixedTag<int8_t, 16>;
using ByteVec = hn::Vec<ByteTag>;
/// Two blocks of sixteen bytes.
using TwoTag = hn::FixedTag<int8_t, 32>;
using TwoVec = hn::Vec<TwoTag>;

/// sum[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1].
HWY_INLINE SumVec AddProducts(PairVec a, PairVec b, SumVec sum) {
#if HWY_TARGET <= HWY_AVX3_DL
  return SumVec{_mm256_dpwssd_epi32(sum.raw, a.raw, b.raw)};
#else
  SumVec unused = hn::Zero(SumTag());
  return hn::ReorderWidenMulAccumulate(SumTag(), a, b, sum, unused);
#endif
}

/// f() kTimes times, with no loop around it.
template <size_t kTimes, class F>
HWY_INLINE void Repeat(const F& f) {
  f();
  if constexpr (kTimes > 1) Repeat<kTimes - 1>(f);
}

/// The same two numbers in every lane.
HWY_INLINE PairVec SetPair(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return hn::BitCast(PairTag(), hn::Set(SumTag(), both));
}

/// Sixteen bytes to eight pairs.
HWY_INLINE PairVec Widen(ByteVec bytes) { return hn::PromoteTo(PairTag(), bytes); }

HWY_INLINE ByteVec LoadBytes(const std::byte* from) {
  return hn::LoadU(ByteTag(), reinterpret_cast<const int8_t*>(from));
}
HWY_INLINE ByteVec LowNibbles(ByteVec bytes) {
  return hn::And(bytes, hn::Set(ByteTag(), int8_t{15}));
}
HWY_INLINE ByteVec HighNibbles(ByteVec bytes) {
  const hn::Repartition<uint16_t, ByteTag> d16;
  return LowNibbles(hn::BitCast(ByteTag(), hn::ShiftRight<4>(hn::BitCast(d16, bytes))));
}
HWY_INLINE ByteVec LookUp(const codec::WholeTable& table, ByteVec codes) {
  return hn::TableLookupBytes(hn::LoadU(ByteTag(), table.data()), codes);
}

template <Codec kCodec>
constexpr const codec::WholeTable& TableOf() {
  if constexpr (kCodec == Codec::kInt4) return codec::kInt4Whole;
  if constexpr (kCodec == Codec::kNf4) return codec::kNf4Whole;
  return codec::kFp4Whole;
}

/// Codes of half a byte: in one block the low, in the other the high halves.
HWY_INLINE TwoVec LoadNibbles(const std::byte* from) {
  const TwoTag d;
  const hn::Repartition<uint32_t, TwoTag> d32;
  alignas(32) static constexpr uint32_t kShifts[8] = {0, 0, 0, 0, 4, 4, 4, 4};
  const TwoVec both = hn::LoadDup128(d, reinterpret_cast<const int8_t*>(from));
  const auto down = hn::Shr(hn::BitCast(d32, both), hn::Load(d32, kShifts));
  return hn::And(hn::BitCast(d, down), hn::Set(d, int8_t{15}));
}

/// Sixteen bits for each block, as bytes: -1 where the bit is set.
HWY_INLINE TwoVec LoadSigns(const std::byte* first, const std::byte* second) {
  const TwoTag d;
  const hn::Repartition<uint32_t, TwoTag> d32;
  const hn::Repartition<uint64_t, TwoTag> d64;
  alignas(32) static constexpr int8_t kByteOfLane[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1,
                                                         1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                                         2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  uint16_t of_first;
  uint16_t of_second;
  std::memcpy(&of_first, first, sizeof(of_first));
  std::memcpy(&of_second, second, sizeof(of_second));
  const uint32_t bits = of_first | static_cast<uint32_t>(of_second) << 16;
  const TwoVec bytes =
      hn::TableLookupBytes(hn::BitCast(d, hn::Set(d32, bits)), hn::Load(d, kByteOfLane));
  const TwoVec lane_bit = hn::BitCast(d, hn::Set(d64, 0x8040201008040201u));
  return hn::VecFromMask(d, hn::Eq(hn::And(bytes, lane_bit), lane_bit));
}

/// Coordinates of points, negated where the sign is -1.
HWY_INLINE TwoVec LookUpPoints(const codec::WholeTable& coordinates, TwoVec points, TwoVec signs) {
  const TwoTag d;
  const TwoVec x = hn::TableLookupBytes(hn::LoadDup128(d, coordinates.data()), points);
  return hn::Sub(hn::Xor(x, signs), signs);
}

/// One head's column of K, from some step on.
struct WholeColumn {
  const std::byte* codes = nullptr;
  const std::byte* signs = nullptr;  // q25
  size_t block_tokens = 0;
  size_t pairs = 0;  // of channels, from here on
};

/// Pairs of channels whose codes share bytes: a step.
template <Codec kCodec>
inline constexpr size_t kPairsPerStep = kCodec == Codec::kQ25 ? 2 : 1;
/// Bytes from one step of a column to the next are these times block_tokens.
template <Codec kCodec>
inline constexpr size_t kStepBytes = kCodec == Codec::kInt8 ? 2 : 1;

template <Codec kCodec>
HWY_INLINE void NextStep(WholeColumn* column) {
  column->codes += column->block_tokens * kStepBytes<kCodec>;
  if constexpr (kCodec == Codec::kQ25) column->signs += column->block_tokens / 8 * 2;
  column->pairs -= kPairsPerStep<kCodec>;
}

/// The sixteen tokens of a step's pairs. A last pair that is alone stands in for the one that is
/// missing: what it meets is zero.
template <Codec kCodec>
HWY_INLINE void LoadKeys(const WholeColumn& column, PairVec (*to)[kVecsPerSixteen]) {
  if constexpr (kCodec == Codec::kInt8) {
    to[0][0] = Widen(LoadBytes(column.codes));
    to[0][1] = Widen(LoadBytes(column.codes + 16));
  } else if constexpr (kCodec == Codec::kQ25) {
    const TwoTag d;
    const TwoVec points = LoadNibbles(column.codes);
    const size_t second = column.pairs > 1 ? column.block_tokens / 8 : 0;
    const TwoVec signs = LoadSigns(column.signs, column.signs + second);
    const TwoVec x = LookUpPoints(codec::kPairFirstWhole, points, signs);
    const TwoVec y = LookUpPoints(codec::kPairSecondWhole, points, signs);
    const TwoVec first_tokens = hn::InterleaveLower(d, x, y);
    const TwoVec last_tokens = hn::InterleaveUpper(d, x, y);
    to[0][0] = Widen(hn::LowerHalf(first_tokens));
    to[0][1] = Widen(hn::LowerHalf(last_tokens));
    to[1][0] = Widen(hn::UpperHalf(ByteTag(), first_tokens));
    to[1][1] = Widen(hn::UpperHalf(ByteTag(), last_tokens));
  } else {
    const ByteVec bytes = LoadBytes(column.codes);
    to[0][0] = Widen(LookUp(TableOf<kCodec>(), LowNibbles(bytes)));
    to[0][1] = Widen(LookUp(TableOf<kCodec>(), HighNibbles(bytes)));
  }
}

/// One head's column of V.
struct WholeRows {
  const std::byte* codes = nullptr;
  const std::byte* signs = nullptr;  // q25
  size_t row_bytes = 0;              // of two tokens
  size_t sign_bytes = 0;             // q25: of one token
  const std::byte* plane = nullptr;  // of the head
  uint32_t first_token = 0;          // of the block's
};

/// Channels that LoadValues takes at a time.
template <Codec kCodec>
inline constexpr size_t kChannelsPerLoad = kCodec == Codec::kQ25 ? codec::kPairChannels : 16;
template <Codec kCodec>
inline constexpr int kVecsPerLoad = static_cast<int>(kChannelsPerLoad<kCodec> / kSumLanes);
/// Bytes of their codes, of two tokens.
template <Codec kCodec>
inline constexpr size_t kBytesPerLoad = kCodec == Codec::kInt8 ? 32 : 16;

/// The channels from `codes` on of two tokens; `signs` are those of the first (q25).
template <Codec kCodec>
HWY_INLINE void LoadValues(const std::byte* codes, const std::byte* signs, size_t sign_bytes,
                           PairVec* to) {
  if constexpr (kCodec == Codec::kInt8) {
    to[0] = Widen(LoadBytes(codes));
    to[1] = Widen(LoadBytes(codes + 16));
  } else if constexpr (kCodec == Codec::kQ25) {
    const ByteTag d;
    const TwoVec points = LoadNibbles(codes);
    const TwoVec negated = LoadSigns(signs, signs + sign_bytes);
    const TwoVec x = LookUpPoints(codec::kPairFirstWhole, points, negated);
    const TwoVec y = LookUpPoints(codec::kPairSecondWhole, points, negated);
    const ByteVec of_x[2] = {hn::LowerHalf(x), hn::UpperHalf(d, x)};
    const ByteVec of_y[2] = {hn::LowerHalf(y), hn::UpperHalf(d, y)};
    to[0] = Widen(hn::InterleaveLower(d, of_x[0], of_x[1]));
    to[1] = Widen(hn::InterleaveUpper(d, of_x[0], of_x[1]));
    to[2] = Widen(hn::InterleaveLower(d, of_y[0], of_y[1]));
    to[3] = Widen(hn::InterleaveUpper(d, of_y[0], of_y[1]));
  } else {
    const ByteVec bytes = LoadBytes(codes);
    to[0] = Widen(LookUp(TableOf<kCodec>(), LowNibbles(bytes)));
    to[1] = Widen(LookUp(TableOf<kCodec>(), HighNibbles(bytes)));
  }
}

/// Channels of `dim` that LoadValues takes; the others are read one by one.
template <Codec kCodec>
constexpr size_t LoadableChannels(size_t dim) {
  return dim / kChannelsPerLoad<kCodec> * kChannelsPerLoad<kCodec>;
}

/// The channels from `begin` on, at most 16, of tokens 2 r and 2 r + 1 as LoadValues has them,
/// zeros after the last.
inline void StoreLastValues(const StreamLayout& stream, const WholeRows& rows, size_t r,
                            size_t begin, int16_t* to) {
  std::fill_n(to, kSixteenPairs, int16_t{0});
  for (size_t d = begin; d < std::min<size_t>(begin + 16, stream.dim); ++d) {
    for (uint32_t t = 0; t < 2; ++t) {
      const auto token = rows.first_token + static_cast<uint32_t>(2 * r) + t;
      const uint8_t code = codec::LoadCode(stream, rows.plane, token, static_cast<uint32_t>(d));
      to[(d - begin) * 2 + t] = static_cast<int16_t>(codec::WholeOf(stream.codec, code));
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

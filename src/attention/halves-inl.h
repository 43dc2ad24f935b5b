// Codes of a plane to f16, exactly, in scratch of the first-level cache: for vectors of eight lanes
// the cheapest way to f32. A table of sixteen f16 is two byte permutes for 32 codes, fp8 is
// f16 but for a shift, and f16 in memory becomes f32 in one operation, which codes in a register do
// not. Kernels then read the scratch as if it were f16 (halves_decode-inl.h).
#include "attention/pairs-inl.h"
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_HALVES_INL_H_
#undef QUIRE_ATTENTION_HALVES_INL_H_
#else
#define QUIRE_ATTENTION_HALVES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/float_bits.h"
#include "codec/planes.h"

// The only target with vectors of eight lanes, and blocks of sixteen bytes in them.
#if HWY_TARGET == HWY_AVX2

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Eight f16: half a channel's tokens in a column of K, eight channels of a token of V.
inline constexpr size_t kPieceLanes = 8;

/// Sixteen f16, their low and their high bytes apart.
struct HalfTable {
  constexpr explicit HalfTable(const float* values) {
    for (size_t i = 0; i < 16; ++i) {
      const uint16_t code = F32ToF16(values[i]);
      exact = exact && F16ToF32(code) == values[i];
      low[i] = static_cast<uint8_t>(code);
      high[i] = static_cast<uint8_t>(code >> 8);
      low_bytes = low_bytes || low[i] != 0;
    }
  }

  alignas(16) std::array<uint8_t, 16> low{};
  alignas(16) std::array<uint8_t, 16> high{};
  bool exact = true;
  bool low_bytes = false;  // else all are 0
};

template <class Values>
inline constexpr HalfTable kHalfTable{Values::kTable};

using CodeTag = hn::FixedTag<uint8_t, 32>;  // two blocks of sixteen
using CodeVec = hn::Vec<CodeTag>;

/// Sixteen codes of half a byte, in one block the low and in the other the high halves of `bytes`.
HWY_INLINE CodeVec LoadNibbles(const std::byte* bytes) {
  const CodeTag d;
  const hn::Repartition<uint32_t, CodeTag> d32;
  alignas(32) static constexpr uint32_t kShifts[8] = {0, 0, 0, 0, 4, 4, 4, 4};
  const auto both = hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(bytes));
  const auto down = hn::Shr(hn::BitCast(d32, both), hn::Load(d32, kShifts));
  return hn::And(hn::BitCast(d, down), hn::Set(d, 15));
}

/// 32 f16 from their bytes: of every block the first eight, then the others.
HWY_INLINE void StoreHalves(CodeVec low, CodeVec high, uint16_t* to) {
  const CodeTag d;
  hn::StoreU(hn::InterleaveLower(d, low, high), d, reinterpret_cast<uint8_t*>(to));
  hn::StoreU(hn::InterleaveUpper(d, low, high), d, reinterpret_cast<uint8_t*>(to + 16));
}

/// f16 of 32 codes, negated where `signs` has its top bit.
template <class Values, bool kSigned>
HWY_INLINE void LookupHalves32(CodeVec codes, CodeVec signs, uint16_t* to) {
  constexpr const HalfTable& table = kHalfTable<Values>;
  static_assert(table.exact);
  const CodeTag d;
  CodeVec high = hn::TableLookupBytes(hn::LoadDup128(d, table.high.data()), codes);
  if constexpr (kSigned) high = hn::Xor(high, signs);
  CodeVec low = hn::Zero(d);
  if constexpr (table.low_bytes) {
    low = hn::TableLookupBytes(hn::LoadDup128(d, table.low.data()), codes);
  }
  StoreHalves(low, high, to);
}

/// 32 bits to bytes that have their top bit set where the bit is.
HWY_INLINE CodeVec SpreadSigns(uint32_t bits) {
  const CodeTag d;
  const hn::Repartition<uint32_t, CodeTag> d32;
  alignas(32) static constexpr uint8_t kByteOfLane[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1,
                                                          1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                                          2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  const auto bytes =
      hn::TableLookupBytes(hn::BitCast(d, hn::Set(d32, bits)), hn::Load(d, kByteOfLane));
  const hn::Repartition<uint64_t, CodeTag> d64;
  const auto lane_bit = hn::BitCast(d, hn::Set(d64, 0x8040201008040201u));
  const auto set = hn::VecFromMask(d, hn::Eq(hn::And(bytes, lane_bit), lane_bit));
  return hn::And(set, hn::Set(d, 0x80));
}

/// The first bits of some signs.
template <size_t kBytes>
HWY_INLINE uint32_t LoadBits(const std::byte* signs) {
  uint32_t bits = 0;
  std::memcpy(&bits, signs, kBytes);
  return bits;
}

/// 32 pairs: sixteen bytes and a bit each. First coordinates, then second.
HWY_INLINE void StorePairs(const std::byte* codes, uint32_t signs, uint16_t* to) {
  const CodeVec nibbles = LoadNibbles(codes);
  const CodeVec negated = SpreadSigns(signs);
  LookupHalves32<PairFirst, true>(nibbles, negated, to);
  LookupHalves32<PairSecond, true>(nibbles, negated, to + 32);
}

/// Sixteen codes of fp8 as f16. E4M3 has one bit of exponent less, and one of mantissa more: its
/// halves are 2^-8 of its values.
template <class Values>
HWY_INLINE void StoreFp8Halves(const std::byte* codes, uint16_t* to) {
  constexpr bool kE4m3 = std::is_same_v<Values, Fp8E4m3Values>;
  const hn::FixedTag<int16_t, 16> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
  auto bits = hn::ShiftLeft<kE4m3 ? 7 : 8>(wide);
  if constexpr (kE4m3) bits = hn::And(bits, hn::Set(d16, static_cast<int16_t>(0xbfff)));
  hn::StoreU(bits, d16, reinterpret_cast<int16_t*>(to));
}

/// A code of q25, as template argument.
struct PairValues {};

/// What halves are multiplied with to be the values.
template <class Values>
inline constexpr float kHalfUnit = std::is_same_v<Values, Fp8E4m3Values> ? 256.0f : 1.0f;

/// A column of K, and how its rows follow each other in the plane.
struct KeyColumn {
  const std::byte* codes;
  const std::byte* signs;  // q25
  size_t row_bytes;        // from one channel to the next; q25: from two pairs to the next two
  size_t sign_bytes;       // q25: from one pair to the next
  size_t dim;
};

/// Piece (channel, half) of what KeyHalves stores.
template <class Values>
constexpr size_t KeyPiece(size_t channel, size_t half) {
  if constexpr (std::is_same_v<Values, PairValues>) {
    return channel / 4 * 8 + channel % 2 * 4 + half * 2 + channel % 4 / 2;
  } else {
    return channel * 2 + half;
  }
}

/// Channels [begin, end) of a column, 16 halves each, in the order of KeyPiece; both are multiples
/// of four but for the column's last channel. Some rows beyond `end` may be overwritten.
template <class Values>
HWY_INLINE void KeyHalves(const KeyColumn& column, size_t begin, size_t end, uint16_t* to) {
  if constexpr (std::is_same_v<Values, PairValues>) {
    const size_t pairs = codec::PairCount(static_cast<uint32_t>(column.dim));
    for (size_t pair = begin / 2; 2 * pair < end; pair += 2, to += 4 * kColumnTokens) {
      const std::byte* signs = column.signs + pair * column.sign_bytes;
      uint32_t bits = LoadBits<2>(signs);
      if (pair + 1 < pairs) bits |= LoadBits<2>(signs + column.sign_bytes) << 16;
      StorePairs(column.codes + pair / 2 * column.row_bytes, bits, to);
    }
  } else if constexpr (HalfByte<Values>) {
    size_t i = begin;
    if (column.row_bytes == 8) {  // two channels in a row
      QUIRE_UNROLL_FEW
      for (; i + 2 <= end; i += 2, to += 2 * kColumnTokens) {
        LookupHalves32<Values, false>(LoadNibbles(column.codes + i * 8), hn::Zero(CodeTag()), to);
      }
    }
    for (; i < end; i += 2, to += 2 * kColumnTokens) {
      alignas(16) std::byte rows[16] = {};
      std::memcpy(rows, column.codes + i * column.row_bytes, 8);
      if (i + 1 < end) std::memcpy(rows + 8, column.codes + (i + 1) * column.row_bytes, 8);
      LookupHalves32<Values, false>(LoadNibbles(rows), hn::Zero(CodeTag()), to);
    }
  } else {
    QUIRE_UNROLL_FEW
    for (size_t i = begin; i < end; ++i, to += kColumnTokens) {
      StoreFp8Halves<Values>(column.codes + i * column.row_bytes, to);
    }
  }
}

/// Where piece `piece` of a token lies in what ValueHalves stores.
template <class Values>
constexpr size_t ValuePiece(size_t piece) {
  if constexpr (std::is_same_v<Values, PairValues>) {
    return piece / 8 * 8 + piece % 4 * 2 + piece % 8 / 4;
  } else if constexpr (HalfByte<Values>) {
    return piece / 4 * 4 + piece % 2 * 2 + piece % 4 / 2;
  } else {
    return piece;
  }
}

/// Channels of V that are stored together, in an order of their own.
template <class Values>
constexpr size_t ValueUnit() {
  if constexpr (std::is_same_v<Values, PairValues>) return 64;
  return HalfByte<Values> ? kNibbleGroup : 16;
}

/// The last channels of a token, fewer than are coded together: +0 after them.
template <class Values>
void LastHalves(const std::byte* codes, const std::byte* signs, bool high, size_t channels,
                uint16_t* to) {
  float last[kNibbleGroup] = {};
  if constexpr (std::is_same_v<Values, PairValues>) {
    LoadLastPairs(codes, signs, high, static_cast<uint32_t>(channels), last);
  } else if constexpr (HalfByte<Values>) {
    LoadPartOfGroup<Values>(codes, channels, last);
  } else {
    // fp8: as StoreFp8Halves, of which the whole row may not be read.
    alignas(16) std::byte row[16] = {};
    std::memcpy(row, codes, channels);
    StoreFp8Halves<Values>(row, to);
    return;
  }
  for (size_t c = 0; c < kNibbleGroup; ++c) {
    const size_t in_unit = (high ? kNibbleGroup : 0) + c;
    to[ValuePiece<Values>(in_unit / kPieceLanes) * kPieceLanes + c % kPieceLanes] =
        F32ToF16(last[c]);
  }
}

/// Tokens of one head's plane of V, and how their rows follow each other.
struct ValueTokens {
  const std::byte* codes;
  const std::byte* signs;  // q25
  size_t token_bytes;
  size_t sign_bytes;
  uint32_t tokens;
};

/// Channels [begin, end) of every token, in the order of ValuePiece, tokens `to_stride` apart.
/// begin is a multiple of a unit, so is end unless it is the token's.
template <class Values>
HWY_INLINE void ValueHalves(const ValueTokens& plane, size_t begin, size_t end, uint16_t* to,
                            size_t to_stride) {
  constexpr bool kPairs = std::is_same_v<Values, PairValues>;
  constexpr size_t kUnit = ValueUnit<Values>();
  const size_t units_end = begin + (end - begin) / kUnit * kUnit;
  for (uint32_t t = 0; t < plane.tokens; ++t) {
    const std::byte* codes = plane.codes + t * plane.token_bytes;
    const std::byte* signs = kPairs ? plane.signs + t * plane.sign_bytes : nullptr;
    uint16_t* row = to + t * to_stride;
    QUIRE_UNROLL_FEW
    for (size_t i = begin; i < units_end; i += kUnit) {
      uint16_t* unit = row + (i - begin);
      if constexpr (kPairs) {
        StorePairs(codes + i / 4, LoadBits<4>(signs + i / 16), unit);
      } else if constexpr (HalfByte<Values>) {
        LookupHalves32<Values, false>(LoadNibbles(codes + i / 2), hn::Zero(CodeTag()), unit);
      } else {
        StoreFp8Halves<Values>(codes + i, unit);
      }
    }
    if (units_end == end) continue;
    size_t i = units_end;
    uint16_t* unit = row + (i - begin);
    if constexpr (kPairs) {
      // Sixteen pairs alone have bytes of their own, whose high halves mean nothing.
      const bool half = i + kNibbleGroup <= end;
      if (half) StorePairs(codes + i / 4, LoadBits<2>(signs + i / 16), unit);
      i += half ? kNibbleGroup : 0;
      if (i < end) LastHalves<Values>(codes + i / kUnit * 16, signs + i / 16, half, end - i, unit);
    } else {
      LastHalves<Values>(codes + RowBytes<Values>(i), nullptr, false, end - i, unit);
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2

#endif  // include guard

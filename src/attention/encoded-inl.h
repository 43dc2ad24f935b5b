// Codes of docs/codecs.md to vectors of f32, unscaled, as template arguments of the kernels. Codes
// of a byte have the shape of the structs of codec/load-inl.h; those of half a byte have a table.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_ENCODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_ENCODED_INL_H_
#undef QUIRE_ATTENTION_ENCODED_INL_H_
#else
#define QUIRE_ATTENTION_ENCODED_INL_H_
#endif

#include <cstring>

#include "codec/formats.h"
#include "codec/planes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

struct Int8Values {
  static constexpr size_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
  }
};

/// The bits of a code, moved to where f32 has exponent and mantissa, are its value but for the bias
/// of the exponent: a power of two, so the product is exact, for the smallest codes too.
template <int kMantissaBits, int kBias>
struct Fp8Values {
  static constexpr size_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    constexpr int kShift = 23 - kMantissaBits;
    const hn::Rebind<int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
    const auto kept = hn::Set(di, static_cast<int32_t>(0x80000000u | (0x7fu << kShift)));
    const auto bits = hn::And(hn::ShiftLeft<kShift>(code), kept);
    const auto unbias = hn::BitCast(d, hn::Set(di, (127 + 127 - kBias) << 23));
    return hn::Mul(hn::BitCast(d, bits), unbias);
  }
};
using Fp8E4m3Values = Fp8Values<3, 7>;
using Fp8E5m2Values = Fp8Values<2, 15>;

/// Channels of V whose codes share the bytes of a group.
inline constexpr size_t kNibbleGroup = codec::kNibbleChannels;

struct Int4Values {
  static constexpr const float* kTable = codec::kInt4Table.data();
};
struct Nf4Values {
  static constexpr const float* kTable = codec::kNf4Table.data();
};
struct Fp4Values {
  static constexpr const float* kTable = codec::kFp4Table.data();
};

template <class Values>
concept HalfByte = requires { Values::kTable; };

/// Bytes of one channel's tokens in a column of K.
template <class Values>
constexpr size_t ColumnBytes() {
  if constexpr (HalfByte<Values>) {
    return kColumnTokens / 2;
  } else {
    return kColumnTokens * Values::kBytes;
  }
}

/// Bytes of one token's `dim` channels of V.
template <class Values>
constexpr size_t RowBytes(size_t dim) {
  if constexpr (HalfByte<Values>) {
    return (dim + 1) / 2;
  } else {
    return dim * Values::kBytes;
  }
}

/// table[low four bits of index].
template <class Values>
HWY_INLINE Vec Lookup(hn::Vec<hn::RebindToUnsigned<Tag>> index) {
  const Tag d;
#if HWY_TARGET <= HWY_AVX3
  return hn::TableLookupLanes(hn::LoadU(d, Values::kTable), hn::Indices512<float>{index.raw});
#elif HWY_TARGET == HWY_AVX2
  // A permute of eight lanes looks at three bits, the fourth chooses between two of them.
  const hn::Indices256<float> in_half{index.raw};
  const auto upper = hn::MaskFromVec(hn::BitCast(d, hn::ShiftLeft<28>(index)));
  return hn::IfThenElse(upper, hn::TableLookupLanes(hn::LoadU(d, Values::kTable + 8), in_half),
                        hn::TableLookupLanes(hn::LoadU(d, Values::kTable), in_half));
#else
  const hn::RebindToSigned<Tag> di;
  const auto low = hn::And(hn::BitCast(di, index), hn::Set(di, 15));
  return hn::GatherIndex(d, Values::kTable, low);
#endif
}

/// Vector v of the values whose codes are the low halves of kCodes bytes, then their high halves.
template <class Values, size_t kCodes>
HWY_INLINE Vec LookupHalves(const std::byte* bytes, size_t v) {
  const hn::Rebind<uint8_t, Tag> d8;
  const hn::RebindToUnsigned<Tag> du;
  constexpr size_t kVecsPerHalf = kCodes / kVecLanes;
  const auto* from = reinterpret_cast<const uint8_t*>(bytes) + v % kVecsPerHalf * kVecLanes;
  const auto index = hn::PromoteTo(du, hn::LoadU(d8, from));
  return Lookup<Values>(v < kVecsPerHalf ? index : hn::ShiftRight<4>(index));
}

/// Tokens of one channel of a column of K, vector v of it. Sixteen lanes of 4-bit codes come in an
/// order of their own, which InTokenOrder undoes.
template <class Values>
HWY_INLINE Vec LoadTokens(const std::byte* row, size_t v) {
  if constexpr (!HalfByte<Values>) {
    return Values::Load(Tag(), row + v * kVecLanes * Values::kBytes);
  } else if constexpr (kVecLanes < kColumnTokens) {
    return LookupHalves<Values, kColumnTokens / 2>(row, v);
  } else {
    // All sixteen codes go to every pair of lanes, which costs a load only; a shift by lane brings
    // one code of it down. The lookup ignores what is above.
    const hn::RebindToUnsigned<Tag> du;
    const hn::Repartition<uint64_t, Tag> d64;
    alignas(64) static constexpr uint32_t kShifts[kColumnTokens] = {0, 0, 8,  8,  16, 16, 24, 24,
                                                                    4, 4, 12, 12, 20, 20, 28, 28};
    uint64_t codes;
    std::memcpy(&codes, row, sizeof(codes));
    const auto shifts = hn::Load(du, kShifts);
    return Lookup<Values>(hn::Shr(hn::BitCast(du, hn::Set(d64, codes)), shifts));
  }
}

template <class Values>
HWY_INLINE Vec InTokenOrder(Vec x) {
  if constexpr (HalfByte<Values> && kVecLanes == kColumnTokens) {
    alignas(64) static constexpr int32_t kLaneOfToken[kColumnTokens] = {
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    return hn::TableLookupLanes(x, hn::SetTableIndices(Tag(), kLaneOfToken));
  } else {
    return x;
  }
}

/// The last channels of a token of 4-bit V, fewer than a group: +0 up to the group's end.
template <class Values>
HWY_INLINE void LoadPartOfGroup(const std::byte* codes, size_t channels, float* to) {
  const size_t half = (channels + 1) / 2;
  for (size_t i = 0; i < kNibbleGroup; ++i) {
    const auto byte = static_cast<uint8_t>(codes[i % half]);
    to[i] = i < channels ? Values::kTable[i < half ? byte & 15 : byte >> 4] : 0.0f;
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

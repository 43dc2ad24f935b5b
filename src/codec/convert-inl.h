// Runs of values of one identity codec into another.
#include "codec/load-inl.h"
#include "codec/scalar.h"
#include "hwy/highway.h"
#include "quire/geometry.h"

#if defined(QUIRE_CODEC_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_CONVERT_INL_H_
#undef QUIRE_CODEC_CONVERT_INL_H_
#else
#define QUIRE_CODEC_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Conversions here must equal float_bits.h in every bit, NaNs included; emulated halves (targets
// without F16C) do not, so those targets take the scalar loops.
#undef QUIRE_CODEC_VECTOR
#define QUIRE_CODEC_VECTOR (HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON)

#if QUIRE_CODEC_VECTOR

// Narrows like F32ToStoredF16 and F32ToBf16.
template <class D>
HWY_INLINE void StoreF16(D d, hn::Vec<D> value, std::byte* to) {
  const hn::RebindToUnsigned<D> du;
  const auto magnitude = hn::Abs(value);
  const auto limit = hn::Set(d, 65504.0f);
  const auto infinity = hn::BitCast(d, hn::Set(du, 0x7f800000u));
  const auto too_large = hn::And(hn::Gt(magnitude, limit), hn::Lt(magnitude, infinity));
  value = hn::IfThenElse(too_large, hn::CopySign(limit, value), value);
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
}

template <class D>
HWY_INLINE void StoreBf16(D d, hn::Vec<D> value, std::byte* to) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  const auto code = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::TruncateTo(d16, code), d16, reinterpret_cast<uint16_t*>(to));
  (void)d;
}

template <class From>
size_t ConvertVectors(const std::byte* from, Codec to_codec, std::byte* to, size_t values) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= values; i += lanes) {
    const auto value = From::Load(d, from + i * From::kBytes);
    if (to_codec == Codec::kF32) {
      hn::StoreU(value, d, reinterpret_cast<float*>(to + i * 4));
    } else if (to_codec == Codec::kF16) {
      StoreF16(d, value, to + i * 2);
    } else {
      StoreBf16(d, value, to + i * 2);
    }
  }
  return i;
}

#endif  // QUIRE_CODEC_VECTOR

// Converts `values` contiguous values; equal codecs are copied bit for bit.
HWY_ATTR inline void Convert(Codec from_codec, const std::byte* from, Codec to_codec, std::byte* to,
                             size_t values) {
  if (from_codec == to_codec) {
    std::memcpy(to, from, values * ValueBytes(to_codec));
    return;
  }
  size_t i = 0;
#if QUIRE_CODEC_VECTOR
  switch (from_codec) {
    case Codec::kF32: i = ConvertVectors<F32Values>(from, to_codec, to, values); break;
    case Codec::kF16: i = ConvertVectors<F16Values>(from, to_codec, to, values); break;
    case Codec::kBf16: i = ConvertVectors<Bf16Values>(from, to_codec, to, values); break;
    default: break;
  }
#endif
  for (; i < values; ++i) StoreValue(to_codec, LoadValue(from_codec, from, i), to, i);
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// fp8 for vectors of any target: encoding, decoding, and what attention reads.
#include "codec/formats/fp8.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_FORMATS_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_FORMATS_FP8_INL_H_
#undef QUIRE_CODEC_FORMATS_FP8_INL_H_
#else
#define QUIRE_CODEC_FORMATS_FP8_INL_H_
#endif

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Format, class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Fp8Codes(D d, hn::Vec<D> scaled) {
  const hn::RebindToUnsigned<D> du;
  const auto magnitude = hn::Min(hn::Abs(scaled), hn::Set(d, Format::kCodeMax));
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<Format::kShift>(bits), hn::Set(du, 1u));
  const auto half = hn::Set(du, (1u << (Format::kShift - 1)) - 1u - Format::kBiasBits);
  const auto normal = hn::ShiftRight<Format::kShift>(hn::Add(hn::Add(bits, odd), half));
  const auto small = hn::BitCast(du, hn::Add(magnitude, hn::Set(d, Format::kDenormalMagic)));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, Format::kMinNormal)));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, scaled)), hn::Set(du, 0x80u));
  return hn::Or(hn::IfThenElse(is_small, small, normal), sign);
}

template <class D>
HWY_INLINE auto Codes(Fp8E4m3, D d, hn::Vec<D> scaled) {
  return Fp8Codes<Fp8E4m3>(d, scaled);
}

template <class D>
HWY_INLINE auto Codes(Fp8E5m2, D d, hn::Vec<D> scaled) {
  return Fp8Codes<Fp8E5m2>(d, scaled);
}

/// Codes to f32.
template <class Format, class D>
HWY_INLINE hn::Vec<D> Fp8ToF32(D d, hn::Vec<hn::RebindToUnsigned<D>> code) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::And(code, hn::Set(du, 0x7fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80u)));
  const auto normal =
      hn::Add(hn::ShiftLeft<Format::kShift>(magnitude), hn::Set(du, Format::kBiasBits));
  // The smallest codes count steps of the smallest one.
  constexpr uint32_t kSteps = 1u << (23 - Format::kShift);
  const auto steps = hn::ConvertTo(d, hn::BitCast(di, magnitude));
  const auto small = hn::Mul(steps, hn::Set(d, Format::kMinNormal / kSteps));
  const auto is_small = hn::Lt(magnitude, hn::Set(du, kSteps));
  auto bits = hn::IfThenElse(is_small, hn::BitCast(du, small), normal);
  // All ones, in the exponent or altogether, are no numbers.
  const auto largest = hn::Set(du, Format::kHasInfinity ? 0x7bu : 0x7eu);
  const auto special = hn::Or(hn::ShiftLeft<Format::kShift>(magnitude), hn::Set(du, 0x7f800000u));
  const auto nan = Format::kHasInfinity ? special : hn::Set(du, 0x7fc00000u);
  bits = hn::IfThenElse(hn::Gt(magnitude, largest), nan, bits);
  return hn::BitCast(d, hn::Or(bits, sign));
}

/// Codes to vectors of f32, unscaled, as a template argument of attention's kernels: the shape of
/// the structs of codec/load-inl.h. Goes by way of f16. (Moved to where f32 has exponent and
/// mantissa, the smallest codes would be denormal, and decode took fifty times as long on Intel.)
template <class Format>
struct Fp8Values {
  static constexpr size_t kBytes = 1;
  static constexpr float kF16Unit = Format::kF16Unit;

  /// The codes at p as f16, as many as D16 has lanes.
  template <class D16>
  static HWY_INLINE hn::Vec<D16> LoadF16(D16 d16, const std::byte* p) {
    const hn::Rebind<int8_t, D16> d8;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
    const auto bits = hn::ShiftLeft<Format::kF16Shift>(wide);
    if constexpr (Format::kF16Shift == 8) return bits;
    return hn::And(bits, hn::Set(d16, static_cast<int16_t>(0xbfff)));
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto f16_values = hn::PromoteTo(d, hn::BitCast(df16, LoadF16(d16, p)));
    if constexpr (kF16Unit == 1.0f) return f16_values;
    return hn::Mul(f16_values, hn::Set(d, kF16Unit));
  }
};

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Codes of fp8 to vectors of f32, unscaled, as template arguments of the kernels: the shape of the
// structs of codec/load-inl.h.
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_ENCODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_ENCODED_INL_H_
#undef QUIRE_ATTENTION_ENCODED_INL_H_
#else
#define QUIRE_ATTENTION_ENCODED_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// fp8 is f16 but for a shift: E5M2 as it is, E4M3 has one bit of exponent less and one of mantissa
/// more, so its f16 values are worth kF16Unit times what they say. (Moved to where f32 has exponent
/// and mantissa, the smallest codes would be denormal, and decode took fifty times as long on
/// Intel.)
template <bool kE4m3>
struct Fp8Values {
  static constexpr size_t kBytes = 1;
  static constexpr float kF16Unit = kE4m3 ? 256.0f : 1.0f;

  /// The codes at p as f16, as many as D16 has lanes.
  template <class D16>
  static HWY_INLINE hn::Vec<D16> LoadF16(D16 d16, const std::byte* p) {
    const hn::Rebind<int8_t, D16> d8;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
    const auto bits = hn::ShiftLeft<kE4m3 ? 7 : 8>(wide);
    if constexpr (!kE4m3) return bits;
    return hn::And(bits, hn::Set(d16, static_cast<int16_t>(0xbfff)));
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto f16_values = hn::PromoteTo(d, hn::BitCast(df16, LoadF16(d16, p)));
    if constexpr (!kE4m3) return f16_values;
    return hn::Mul(f16_values, hn::Set(d, kF16Unit));
  }
};
using Fp8E4m3Values = Fp8Values<true>;
using Fp8E5m2Values = Fp8Values<false>;

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

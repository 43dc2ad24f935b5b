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

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// What the vector code of this layer shares: rounding to the compute type.
//
// Only targets with a fused multiply-add are compiled (the sources define HWY_BASELINE_TARGETS
// before they include Highway): the others would give other bits. Model::Load refuses their CPUs.
#include "base/unroll.h"
#include "hwy/highway.h"
#include "quire/identity.h"

#if defined(QUIRE_MODEL_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_SIMD_INL_H_
#undef QUIRE_MODEL_SIMD_INL_H_
#else
#define QUIRE_MODEL_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Nearest even, like F32ToBf16 and F32ToF16 of base/float_bits.h, widened again.
template <ComputeType kType, class D>
HWY_INLINE hn::Vec<D> RoundTo(D d, hn::Vec<D> value) {
  if constexpr (kType == ComputeType::kF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::DemoteTo(d16, value));
  } else if constexpr (kType == ComputeType::kBf16) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto nearest = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
    const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, nearest);
    return hn::BitCast(d, hn::And(kept, hn::Set(du, 0xffff0000u)));
  } else {
    return value;
  }
}

}  // namespace quire::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

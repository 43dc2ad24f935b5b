// fp4 for vectors of any target.
#include "codec/formats/fp4.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_FORMATS_FP4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_FORMATS_FP4_INL_H_
#undef QUIRE_CODEC_FORMATS_FP4_INL_H_
#else
#define QUIRE_CODEC_FORMATS_FP4_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE auto Codes(Fp4, D d, hn::Vec<D> scaled) {
  const hn::RebindToUnsigned<D> du;
  const auto magnitude = hn::Min(hn::Abs(scaled), hn::Set(d, Fp4::kCodeMax));
  const auto below_2 = hn::Lt(magnitude, hn::Set(d, 2.0f));
  const auto below_4 = hn::Lt(magnitude, hn::Set(d, 4.0f));
  const auto magic =
      hn::IfThenElse(below_2, hn::Set(d, 0x1p22f),
                     hn::IfThenElse(below_4, hn::Set(d, 0x1p23f), hn::Set(d, 0x1p24f)));
  const auto first =
      hn::IfThenElse(hn::RebindMask(du, below_2), hn::Zero(du),
                     hn::IfThenElse(hn::RebindMask(du, below_4), hn::Set(du, 2u), hn::Set(du, 4u)));
  const auto steps = hn::And(hn::BitCast(du, hn::Add(magnitude, magic)), hn::Set(du, 15u));
  const auto sign = hn::ShiftLeft<3>(hn::ShiftRight<31>(hn::BitCast(du, scaled)));
  return hn::Or(hn::Add(steps, first), sign);
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// Exp of docs/numerics.md section 1 on vectors: the bits of exp.h in every lane.
#include "attention/exp.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_MATH_INL_H_
#undef QUIRE_ATTENTION_MATH_INL_H_
#else
#define QUIRE_ATTENTION_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// e^x of every lane. Needs a target with a fused MulAdd.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(d, kRoundMagic);
  const auto in_range = hn::Ge(x, hn::Set(d, kExpArgumentMin));
  x = hn::Min(x, hn::Set(d, kExpArgumentMax));
  const V shifted = hn::Add(hn::Mul(x, hn::Set(d, kLog2E)), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::MulAdd(n, hn::Set(d, -kLn2High), x);
  r = hn::MulAdd(n, hn::Set(d, -kLn2Low), r);
  V p = hn::Set(d, kExpPolynomial[0]);
  p = hn::MulAdd(p, r, hn::Set(d, kExpPolynomial[1]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPolynomial[2]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPolynomial[3]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPolynomial[4]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPolynomial[5]));
  const V y = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto n_in_exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  return hn::IfThenElseZero(in_range, hn::BitCast(d, hn::Add(hn::BitCast(du, y), n_in_exponent)));
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

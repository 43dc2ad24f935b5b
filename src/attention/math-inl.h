// Exp of docs/numerics.md section 1 on vectors: the bits of scalar.h in every lane.
#include "attention/scalar.h"
#include "base/unroll.h"
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

/// e^x of every lane of kVecs vectors, each step of all of them before the next one, which would
/// wait for it. Needs a target with a fused MulAdd.
template <size_t kVecs, class D>
HWY_INLINE void Exp(D d, hn::Vec<D>* x) {
  using V = hn::Vec<D>;
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, kRoundMagic);
  V shifted[kVecs];
  V r[kVecs];
  V p[kVecs];
  QUIRE_UNROLL
  for (size_t i = 0; i < kVecs; ++i) {
    r[i] = hn::Min(x[i], hn::Set(d, kExpArgumentMax));
    shifted[i] = hn::Add(hn::Mul(r[i], hn::Set(d, kLog2E)), magic);
  }
  QUIRE_UNROLL
  for (size_t i = 0; i < kVecs; ++i) {
    const V n = hn::Sub(shifted[i], magic);
    r[i] = hn::MulAdd(n, hn::Set(d, -kLn2High), r[i]);
    r[i] = hn::MulAdd(n, hn::Set(d, -kLn2Low), r[i]);
    p[i] = hn::Set(d, kExp5);
  }
  QUIRE_UNROLL
  for (const float coefficient : {kExp4, kExp3, kExp2, kExp1, kExp0}) {
    QUIRE_UNROLL
    for (size_t i = 0; i < kVecs; ++i) {
      p[i] = hn::MulAdd(p[i], r[i], hn::Set(d, coefficient));
    }
  }
  QUIRE_UNROLL
  for (size_t i = 0; i < kVecs; ++i) {
    const V y = hn::Add(hn::MulAdd(p[i], hn::Mul(r[i], r[i]), r[i]), hn::Set(d, 1.0f));
    const auto n_in_exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted[i]));
    const auto in_range = hn::Ge(x[i], hn::Set(d, kExpArgumentMin));
    x[i] = hn::IfThenElseZero(in_range, hn::BitCast(d, hn::Add(hn::BitCast(du, y), n_in_exponent)));
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  Exp<1>(d, &x);
  return x;
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

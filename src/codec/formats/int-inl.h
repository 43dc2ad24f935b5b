// int8 and int4 for vectors of any target.
#include "codec/formats/int.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_FORMATS_INT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_FORMATS_INT_INL_H_
#undef QUIRE_CODEC_FORMATS_INT_INL_H_
#else
#define QUIRE_CODEC_FORMATS_INT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// In the lowest bits; above them may be anything.
template <int kBits, int kBias, class D>
HWY_INLINE auto Codes(IntBits<kBits, kBias>, D d, hn::Vec<D> scaled) {
  using Format = IntBits<kBits, kBias>;
  const hn::RebindToUnsigned<D> du;
  const auto low = hn::Set(d, Format::kLow);
  const auto high = hn::Set(d, Format::kHigh);
  const auto clamped = hn::Min(hn::Max(scaled, low), high);
  return hn::BitCast(du, hn::Add(clamped, hn::Set(d, Format::kMagic)));
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

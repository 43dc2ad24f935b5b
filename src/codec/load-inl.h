// Stored values to vectors of f32, as a template argument of kernels: one struct per codec. A codec
// with scales adds its own struct in its own file; these three have none.
#include "hwy/highway.h"
#include "quire/geometry.h"

#if defined(QUIRE_CODEC_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_LOAD_INL_H_
#undef QUIRE_CODEC_LOAD_INL_H_
#else
#define QUIRE_CODEC_LOAD_INL_H_
#endif

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Each has: kCodec; kBytes of one value; Load(d, p), the Lanes(d) values at p, widened exactly.
/// Reads no byte beyond them; p needs no alignment beyond the value's own.
struct F32Values {
  static constexpr Codec kCodec = Codec::kF32;
  static constexpr size_t kBytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  }
};

struct F16Values {
  static constexpr Codec kCodec = Codec::kF16;
  static constexpr size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
};

struct Bf16Values {
  static constexpr Codec kCodec = Codec::kBf16;
  static constexpr size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<hwy::bfloat16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::bfloat16_t*>(p)));
  }
};

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

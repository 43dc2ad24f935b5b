// The butterflies of codec/rotate.h.
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_ROTATE_INL_H_
#undef QUIRE_CODEC_ROTATE_INL_H_
#else
#define QUIRE_CODEC_ROTATE_INL_H_
#endif

#include <cmath>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Butterflies of pairs `h` apart, h at least a vector.
HWY_ATTR inline void FarStage(float* x, uint32_t n, uint32_t h) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  for (uint32_t begin = 0; begin < n; begin += 2 * h) {
    for (uint32_t i = begin; i < begin + h; i += lanes) {
      const auto a = hn::LoadU(d, x + i);
      const auto b = hn::LoadU(d, x + i + h);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + h);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// Butterflies of pairs within a vector; n is a multiple of it. The second of a pair is negated and
// its partner added: a - b.
HWY_ATTR inline void NearStages(float* x, uint32_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto lane = hn::Iota(di, 0);
  for (uint32_t i = 0; i < n; i += lanes) {
    auto value = hn::LoadU(d, x + i);
    for (uint32_t h = 1; h < lanes; h *= 2) {
      const auto bit = hn::Set(di, static_cast<int32_t>(h));
      const auto partner = hn::TableLookupLanes(value, hn::IndicesFromVec(d, hn::Xor(lane, bit)));
      const auto is_second = hn::Eq(hn::And(lane, bit), bit);
      const auto sign = hn::IfThenElseZero(hn::RebindMask(du, is_second), hn::Set(du, 0x80000000u));
      value = hn::Add(partner, hn::Xor(value, hn::BitCast(d, sign)));
    }
    hn::StoreU(value, d, x + i);
  }
}
#endif

HWY_ATTR inline void RotateBlock(float* x, uint32_t n, float factor) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  uint32_t h = 1;
#if HWY_TARGET != HWY_SCALAR
  if (n >= lanes) {
    NearStages(x, n);
    h = lanes;
  }
#endif
  if (n < lanes) {
    for (; h < n; h *= 2) {
      for (uint32_t i = 0; i < n; ++i) {
        if ((i & h) != 0) continue;
        const float a = x[i];
        const float b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
    for (uint32_t i = 0; i < n; ++i) x[i] *= factor;
    return;
  }
  for (; h < n; h *= 2) FarStage(x, n, h);
  const auto factors = hn::Set(d, factor);
  for (uint32_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factors), d, x + i);
  }
}

/// `count` runs of n values, each rotated by itself. n is a power of two.
HWY_ATTR inline void RotateBlocks(float* values, uint64_t count, uint32_t n) {
  if (n == 1) return;
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (uint64_t i = 0; i < count; ++i) RotateBlock(values + i * n, n, factor);
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

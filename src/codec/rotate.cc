#include "codec/rotate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/rotate.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "codec/rotate-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

void RotateOfTarget(float* rows, uint64_t count, uint32_t dim) {
  const uint32_t n = RotationDim(dim);
  RotateBlocks(rows, count * (dim / n), n);
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::codec {

HWY_EXPORT(RotateOfTarget);

void Rotate(float* rows, uint64_t count, uint32_t dim) {
  HWY_DYNAMIC_DISPATCH(RotateOfTarget)(rows, count, dim);
}

}  // namespace quire::codec
#endif  // HWY_ONCE

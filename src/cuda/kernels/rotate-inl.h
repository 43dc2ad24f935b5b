// The rotation of codec/rotate.h by the threads of a block, or of a warp.
#ifndef QUIRE_CUDA_KERNELS_ROTATE_INL_H_
#define QUIRE_CUDA_KERNELS_ROTATE_INL_H_

#include <cstdint>

#include "codec/rotate.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Butterfly `pair` of those `h` apart.
QUIRE_KERNEL void RotatePair(float* row, uint32_t pair, uint32_t h) {
  const uint32_t d = pair / h * 2 * h + pair % h;
  const float a = row[d];
  const float b = row[d + h];
  row[d] = a + b;
  row[d + h] = a - b;
}

/// The factor of each channel after the last butterfly.
QUIRE_KERNEL float RotationFactor(uint32_t n) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
}

/// One row in shared memory, rotated in place (codec/rotate.h). Ends with a Sync.
template <class Thread>
QUIRE_KERNEL void RotateShared(Thread& self, float* row, uint32_t dim) {
  const uint32_t n = codec::RotationDim(dim);
  if (n == 1) return;
  for (uint32_t h = 1; h < n; h *= 2) {
    for (uint32_t pair = self.id(); pair < dim / 2; pair += self.count()) RotatePair(row, pair, h);
    self.Sync();
  }
  const float factor = RotationFactor(n);
  for (uint32_t d = self.id(); d < dim; d += self.count()) row[d] *= factor;
  self.Sync();
}

/// The same by one warp.
template <class Thread>
QUIRE_KERNEL void RotateByWarp(const Warp<Thread>& warp, float* row, uint32_t dim) {
  const uint32_t n = codec::RotationDim(dim);
  if (n == 1) return;
  for (uint32_t h = 1; h < n; h *= 2) {
    warp.Lanes([&](uint32_t lane) {
      for (uint32_t pair = lane; pair < dim / 2; pair += kWarpLanes) RotatePair(row, pair, h);
    });
    warp.Sync();
  }
  const float factor = RotationFactor(n);
  warp.Lanes([&](uint32_t lane) {
    for (uint32_t d = lane; d < dim; d += kWarpLanes) row[d] *= factor;
  });
  warp.Sync();
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_ROTATE_INL_H_

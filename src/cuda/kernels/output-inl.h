// Outputs of query vectors: where they go, and how a warp writes one (cuda/kernels/mma_attend.h).
#ifndef QUIRE_CUDA_KERNELS_OUTPUT_INL_H_
#define QUIRE_CUDA_KERNELS_OUTPUT_INL_H_

#include <cstdint>

#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/split_shared-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// Query vector `q` of a tile gets what its row in shared memory has, rotated back where values
/// were rotated. All threads of one warp.
/// Shape: row [value.dim]
template <class Thread>
QUIRE_KERNEL void WriteOutput(const Warp<Thread>& warp, const SplitsArgs& args, const Tile& tile,
                              uint32_t q, float* row) {
  const StreamLayout& value = args.shape.value;
  warp.Sync();
  if (value.rotated) RotateByWarp(warp, row, value.dim);
  float* const out =
      RowOf(args, tile, q).out + uint64_t{tile.head_begin + q % tile.heads} * value.dim;
  warp.Lanes([&](uint32_t lane) {
    for (uint32_t d = lane; d < value.dim; d += kWarpLanes) out[d] = row[d];
  });
  warp.Sync();
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_OUTPUT_INL_H_

// The attention kernels of the class mma16 as device code: one of narrow tiles, one of wide ones.
// Both ask for codecs as they go: a stage of tokens is long beside that.
#include "cuda/mma_splits-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

// So many blocks share a processor: a thread may have all the registers that it can name.
constexpr uint32_t kNarrowBlocks = 8;
constexpr uint32_t kWideBlocks = 2;

template <uint32_t kWarps>
__global__ void __launch_bounds__(kWarps* kWarpLanes, kWarps == 1 ? kNarrowBlocks : kWideBlocks)
    RunMmaSplits(const __grid_constant__ MmaArgs args) {
  CudaThread self(LaunchedShared());
  MmaSplits<CudaThread, kWarps>(self, args).Run();
}

template <uint32_t kWarps>
int Launch(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  const uint32_t shared_bytes = SharedOf(args.splits.shape, kWarps, how.folds).bytes;
  auto* const kernel = RunMmaSplits<kWarps>;
  const cudaError_t grown = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (grown != cudaSuccess) return grown;
  kernel<<<how.blocks, kWarps * kWarpLanes, shared_bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

int LaunchMmaSplits(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  return how.warps == 1 ? Launch<1>(args, how, stream) : Launch<kMmaWarps>(args, how, stream);
}

}  // namespace quire::cuda

// The attention kernels of the class mma16 as device code: of blocks that fold and of those that
// leave states, each for stored numbers alone and with codes, whose codec is asked for as they go.
#include "cuda/mma_splits-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

// So many blocks share a processor: a thread may have all the registers that it can name.
constexpr int BlocksOf(bool folds) { return folds ? 2 : 8; }

template <bool kFolds, bool kEncoded>
__global__ void __launch_bounds__(WarpsOf(kFolds) * kWarpLanes, BlocksOf(kFolds))
    RunMmaSplits(const __grid_constant__ MmaArgs args) {
  CudaThread self(LaunchedShared());
  MmaSplits<CudaThread, kFolds, kEncoded>(self, args).Run();
}

template <bool kFolds, bool kEncoded>
int Launch(const MmaArgs& args, uint32_t blocks, CUstream_st* stream) {
  auto* const kernel = RunMmaSplits<kFolds, kEncoded>;
  const cudaError_t grown = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(args.shared.bytes));
  if (grown != cudaSuccess) return grown;
  kernel<<<blocks, WarpsOf(kFolds) * kWarpLanes, args.shared.bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

int LaunchMmaSplits(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  if (IsEncoded(args.splits.shape)) {
    return how.folds ? Launch<true, true>(args, how.blocks, stream)
                     : Launch<false, true>(args, how.blocks, stream);
  }
  return how.folds ? Launch<true, false>(args, how.blocks, stream)
                   : Launch<false, false>(args, how.blocks, stream);
}

}  // namespace quire::cuda

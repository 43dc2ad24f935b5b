// The attention kernels of the class mma16 as device code: of blocks that fold and of those that
// leave states, each for every way in which K and V come. With codes their codec is asked for as
// they go.
#include "cuda/kernels/mma_splits-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/start.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

// So many blocks share a processor: a thread may have all the registers that it can name.
constexpr int BlocksOf(bool folds) { return folds ? 2 : 8; }

// Architectures without bulk copies have an empty kernel that is never launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasBulkCopies = false;
#else
constexpr bool kHasBulkCopies = true;
#endif

template <bool kFolds, Staging kStaging, uint32_t kTiles>
__global__ void __launch_bounds__(WarpsOf(kFolds) * kWarpLanes, BlocksOf(kFolds))
    RunMmaSplits(const __grid_constant__ MmaArgs args) {
  if constexpr (kStaging != Staging::kBulk || kHasBulkCopies) {
    CudaThread self;
    MmaSplits<CudaThread, kFolds, kStaging, kTiles>(self, args).Run();
  }
}

template <bool kFolds, Staging kStaging, uint32_t kTiles>
int Launch(const MmaArgs& args, uint32_t blocks, CUstream_st* stream) {
  return Start(kFolds ? "RunMmaSplits that folds" : "RunMmaSplits",
               RunMmaSplits<kFolds, kStaging, kTiles>,
               {blocks, WarpsOf(kFolds) * kWarpLanes, args.shared.bytes}, stream, args);
}

template <bool kFolds, Staging kStaging>
int Launch(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  if constexpr (!kFolds) {
    if (how.query_tiles == 1) return Launch<kFolds, kStaging, 1>(args, how.blocks, stream);
  }
  return Launch<kFolds, kStaging, kQueryTilesMax>(args, how.blocks, stream);
}

template <bool kFolds>
int Launch(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  switch (how.staging) {
    case Staging::kDecoded: return Launch<kFolds, Staging::kDecoded>(args, how, stream);
    case Staging::kCopied: return Launch<kFolds, Staging::kCopied>(args, how, stream);
    case Staging::kBulk: return Launch<kFolds, Staging::kBulk>(args, how, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int LaunchMmaSplits(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  return how.folds ? Launch<true>(args, how, stream) : Launch<false>(args, how, stream);
}

}  // namespace quire::cuda

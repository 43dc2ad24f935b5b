// The attention kernels of the class mma16 as device code: of blocks that fold and of those that
// leave states, each for every way in which K and V come. With codes their codec is asked for as
// they go, and no block folds.
#include "cuda/kernels/mma_folded-inl.h"
#include "cuda/kernels/mma_states-inl.h"
#include "cuda/runtime/give.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = kMmaWarps * kWarpLanes;
// So many blocks share a processor. Those that fold may have all the registers that a thread can
// name.
constexpr int kFoldedBlocks = 2;
constexpr int BlocksOf(uint32_t tiles) { return tiles == 1 ? 4 : 3; }

// Architectures without bulk copies have an empty kernel that is never launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasBulkCopies = false;
#else
constexpr bool kHasBulkCopies = true;
#endif

template <Staging kStaging>
__global__ void __launch_bounds__(kThreads, kFoldedBlocks)
    RunMmaFolded(const __grid_constant__ MmaArgs args) {
  if constexpr (kStaging != Staging::kBulk || kHasBulkCopies) {
    CudaThread self;
    MmaFolded<CudaThread, kStaging>(self, args).Run();
  }
}

template <Staging kStaging, uint32_t kTiles>
__global__ void __launch_bounds__(kThreads, BlocksOf(kTiles))
    RunMmaStates(const __grid_constant__ MmaArgs args) {
  if constexpr (kStaging != Staging::kBulk || kHasBulkCopies) {
    CudaThread self;
    MmaStates<CudaThread, kStaging, kTiles>(self, args).Run();
  }
}

template <Staging kStaging>
void LaunchStates(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) {
  const Grid grid{how.blocks, kThreads, args.shared.bytes};
  if (how.query_tiles == 1) {
    Give("RunMmaStates", RunMmaStates<kStaging, 1>, grid, sink, args);
  } else {
    Give("RunMmaStates", RunMmaStates<kStaging, kQueryTilesMax>, grid, sink, args);
  }
}

template <Staging kStaging>
void Launch(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) {
  if (!how.folds) return LaunchStates<kStaging>(args, how, sink);
  const Grid grid{how.blocks, kThreads, args.shared.bytes};
  Give("RunMmaFolded", RunMmaFolded<kStaging>, grid, sink, args);
}

}  // namespace

void LaunchMma(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) {
  switch (how.staging) {
    case Staging::kCodes: return LaunchStates<Staging::kCodes>(args, how, sink);
    case Staging::kCopied: return Launch<Staging::kCopied>(args, how, sink);
    case Staging::kBulk: return Launch<Staging::kBulk>(args, how, sink);
  }
}

}  // namespace quire::cuda

// The attention kernels of the class mma16 as device code: of blocks that fold and of those that
// leave states, each for every way in which K and V come. Where K and V are codes, their codec is
// asked for as they go; the usual ones have kernels of their own for decode.
#include "cuda/kernels/mma_folded-inl.h"
#include "cuda/kernels/mma_states-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/start.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = kMmaWarps * kWarpLanes;
// So many blocks share a processor. Those that fold may have all the registers that a thread can
// name.
constexpr int kFoldedBlocks = 2;
constexpr int BlocksOf(Staging staging, uint32_t tiles) {
  return tiles == 1 && staging != Staging::kDecoded ? 4 : 3;
}

// Architectures without bulk copies have an empty kernel that is never launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasBulkCopies = false;
#else
constexpr bool kHasBulkCopies = true;
#endif

template <class Way>
__global__ void __launch_bounds__(kThreads, kFoldedBlocks)
    RunMmaFolded(const __grid_constant__ MmaArgs args) {
  if constexpr (Way::kStaging != Staging::kBulk || kHasBulkCopies) {
    CudaThread self;
    MmaFolded<CudaThread, Way>(self, args).Run();
  }
}

template <class Way, uint32_t kTiles>
__global__ void __launch_bounds__(kThreads, BlocksOf(Way::kStaging, kTiles))
    RunMmaStates(const __grid_constant__ MmaArgs args) {
  if constexpr (Way::kStaging != Staging::kBulk || kHasBulkCopies) {
    CudaThread self;
    MmaStates<CudaThread, Way, kTiles>(self, args).Run();
  }
}

template <class Way, uint32_t kTiles>
int LaunchStates(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  return Start("RunMmaStates", RunMmaStates<Way, kTiles>, {how.blocks, kThreads, args.shared.bytes},
               stream, args);
}

template <Staging kStaging>
int Launch(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  using Way = WayIn<kStaging>;
  if (how.folds) {
    return Start("RunMmaFolded", RunMmaFolded<Way>, {how.blocks, kThreads, args.shared.bytes},
                 stream, args);
  }
  return how.query_tiles == 1 ? LaunchStates<Way, 1>(args, how, stream)
                              : LaunchStates<Way, kQueryTilesMax>(args, how, stream);
}

/// Codes of one codec, if it is one of these.
template <class Format, class... Others>
int LaunchKnown(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  const AttentionShape& shape = args.splits.shape;
  if (shape.key.codec == Format::kCodec && shape.value.codec == Format::kCodec) {
    return LaunchStates<WayIn<Staging::kDecoded, Known<Format>>, 1>(args, how, stream);
  }
  if constexpr (sizeof...(Others) > 0) {
    return LaunchKnown<Others...>(args, how, stream);
  } else {
    return Launch<Staging::kDecoded>(args, how, stream);
  }
}

}  // namespace

int LaunchMma(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream) {
  switch (how.staging) {
    case Staging::kDecoded: {
      using namespace codec;
      if (how.folds || how.query_tiles != 1) return Launch<Staging::kDecoded>(args, how, stream);
      return LaunchKnown<Int8, Fp8E4m3, Int4, Nf4>(args, how, stream);
    }
    case Staging::kCopied: return Launch<Staging::kCopied>(args, how, stream);
    case Staging::kBulk: return Launch<Staging::kBulk>(args, how, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace quire::cuda

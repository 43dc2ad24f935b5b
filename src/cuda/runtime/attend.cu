// The attention kernels as device code. A codec that K and V have both has a kernel of its own; all
// other pairs share one that asks.

#include "cuda/kernels/fold-inl.h"
#include "cuda/kernels/splits-inl.h"
#include "cuda/runtime/give.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

// So many blocks share a processor at least; 0: as many as registers leave room for.
constexpr int BlocksOf(uint32_t queries) { return queries == kTileQueriesMax ? 4 : 0; }

template <class Keys, class Values, uint32_t kQueries>
__global__ void __launch_bounds__(kAttendThreads, BlocksOf(kQueries))
    RunSplits(const __grid_constant__ SplitsArgs args) {
  CudaThread self;
  SplitsKernel<CudaThread, Keys, Values, kQueries>(self, args).Run();
}

__global__ void __launch_bounds__(kFoldThreads) RunFold(const __grid_constant__ FoldArgs args) {
  CudaThread self;
  FoldKernel<CudaThread>(self, args).Run();
}

template <class Keys, class Values, uint32_t kQueries>
void Launch(const SplitsArgs& args, uint32_t blocks, LaunchSink& sink) {
  Give("RunSplits", RunSplits<Keys, Values, kQueries>,
       {blocks, kAttendThreads, SharedBytes<kQueries>(args.shape.key.dim)}, sink, args);
}

template <uint32_t kQueries, class Format, class... Others>
void LaunchKnown(const SplitsArgs& args, uint32_t blocks, LaunchSink& sink) {
  if (args.shape.key.codec == Format::kCodec && args.shape.value.codec == Format::kCodec) {
    return Launch<Known<Format>, Known<Format>, kQueries>(args, blocks, sink);
  }
  if constexpr (sizeof...(Others) > 0) {
    return LaunchKnown<kQueries, Others...>(args, blocks, sink);
  } else {
    return Launch<Any, Any, kQueries>(args, blocks, sink);
  }
}

template <uint32_t kQueries>
void LaunchQueries(const SplitsArgs& args, uint32_t blocks, LaunchSink& sink) {
  using namespace codec;
  return LaunchKnown<kQueries, F16Format, Bf16Format, Fp8E4m3, Fp8E5m2, Int8, Int4, Nf4, Fp4, Q25>(
      args, blocks, sink);
}

}  // namespace

void LaunchSplits(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink) {
  if (how.queries_max <= 4) return LaunchQueries<4>(args, how.blocks, sink);
  if (how.queries_max <= 8) return LaunchQueries<8>(args, how.blocks, sink);
  return LaunchQueries<16>(args, how.blocks, sink);
}

void LaunchFold(const FoldArgs& args, uint32_t vectors, LaunchSink& sink) {
  Give("RunFold", RunFold, {vectors, kFoldThreads, FoldSharedBytes(args.value.dim)}, sink, args);
}

}  // namespace quire::cuda

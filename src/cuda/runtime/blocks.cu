// The kernels of block operations as device code.
#include "cuda/kernels/checksum-inl.h"
#include "cuda/kernels/encode-inl.h"
#include "cuda/kernels/rows-inl.h"
#include "cuda/runtime/give.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(kBlockThreads) RunWrite(const __grid_constant__ WriteArgs args) {
  CudaThread self;
  WriteRow(self, args);
}

__global__ void __launch_bounds__(kBlockThreads) RunRead(const __grid_constant__ ReadArgs args) {
  CudaThread self;
  ReadRow(self, args);
}

__global__ void __launch_bounds__(kBlockThreads)
    RunEncode(const __grid_constant__ EncodeArgs args) {
  CudaThread self;
  EncodeKernel<CudaThread>(self, args).Run();
}

__global__ void __launch_bounds__(kBlockThreads)
    RunChecksum(const __grid_constant__ ChecksumArgs args) {
  CudaThread self;
  ChecksumKernel<CudaThread>(self, args).Run();
}

}  // namespace

void LaunchWrite(const WriteArgs& args, LaunchSink& sink) {
  Give("RunWrite", RunWrite, {WriteBlocks(args), kBlockThreads, WriteSharedBytes(args)}, sink,
       args);
}

void LaunchRead(const ReadArgs& args, LaunchSink& sink) {
  Give("RunRead", RunRead,
       {args.tokens * args.stream.heads, kBlockThreads, RowSharedBytes(args.stream.dim)}, sink,
       args);
}

void LaunchEncode(const EncodeArgs& args, LaunchSink& sink) {
  Give("RunEncode", RunEncode, {EncodeBlocks(args), kBlockThreads, EncodeSharedBytes(args)}, sink,
       args);
}

void LaunchChecksum(const ChecksumArgs& args, LaunchSink& sink) {
  Give("RunChecksum", RunChecksum,
       {args.slot_count * args.blocks, kBlockThreads, ChecksumKernel<CudaThread>::kSharedBytes},
       sink, args);
}

}  // namespace quire::cuda

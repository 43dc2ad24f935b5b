// The kernels of block operations as device code.
#include "cuda/kernels/checksum-inl.h"
#include "cuda/kernels/encode-inl.h"
#include "cuda/kernels/rows-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/start.h"
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

int LaunchWrite(const WriteArgs& args, CUstream_st* stream) {
  return Start("RunWrite", RunWrite, {WriteBlocks(args), kBlockThreads, WriteSharedBytes(args)},
               stream, args);
}

int LaunchRead(const ReadArgs& args, CUstream_st* stream) {
  return Start("RunRead", RunRead,
               {args.tokens * args.stream.heads, kBlockThreads, RowSharedBytes(args.stream.dim)},
               stream, args);
}

int LaunchEncode(const EncodeArgs& args, CUstream_st* stream) {
  return Start("RunEncode", RunEncode, {EncodeBlocks(args), kBlockThreads, EncodeSharedBytes(args)},
               stream, args);
}

int LaunchChecksum(const ChecksumArgs& args, CUstream_st* stream) {
  return Start("RunChecksum", RunChecksum,
               {args.blocks, kBlockThreads, ChecksumKernel<CudaThread>::kSharedBytes}, stream,
               args);
}

}  // namespace quire::cuda

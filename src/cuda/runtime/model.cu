// The kernels of a model's pass as device code.
#include "cuda/kernels/model-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/start.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(kMatmulThreads)
    RunMatmul(const __grid_constant__ MatmulArgs args) {
  CudaThread self;
  MatmulKernel<CudaThread>(self, args).Run();
}

__global__ void __launch_bounds__(kModelThreads) RunEmbed(const __grid_constant__ EmbedArgs args) {
  CudaThread self;
  EmbedRow(self, args);
}

__global__ void __launch_bounds__(kModelThreads) RunNorm(const __grid_constant__ NormArgs args) {
  CudaThread self;
  NormRow(self, args);
}

__global__ void __launch_bounds__(kHeadThreads) RunHeads(const __grid_constant__ HeadsArgs args) {
  CudaThread self;
  RotateHead(self, args);
}

__global__ void __launch_bounds__(kModelThreads) RunGate(const __grid_constant__ GateArgs args) {
  CudaThread self;
  GateValue(self, args);
}

__global__ void __launch_bounds__(kModelThreads) RunAdd(const __grid_constant__ AddArgs args) {
  CudaThread self;
  AddValue(self, args);
}

}  // namespace

int LaunchMatmul(const MatmulArgs& args, CUstream_st* stream) {
  return Start("RunMatmul", RunMatmul, {MatmulBlocks(args), kMatmulThreads, kMatmulSharedBytes},
               stream, args);
}

int LaunchEmbed(const EmbedArgs& args, CUstream_st* stream) {
  return Start("RunEmbed", RunEmbed, {args.rows, kModelThreads, 0}, stream, args);
}

int LaunchNorm(const NormArgs& args, CUstream_st* stream) {
  return Start("RunNorm", RunNorm, {args.rows, kModelThreads, kNormSharedBytes}, stream, args);
}

int LaunchHeads(const HeadsArgs& args, CUstream_st* stream) {
  return Start("RunHeads", RunHeads, {HeadBlocks(args), kHeadThreads, kNormSharedBytes}, stream,
               args);
}

int LaunchGate(const GateArgs& args, CUstream_st* stream) {
  return Start("RunGate", RunGate, {ValueBlocks(uint64_t{args.rows} * args.n), kModelThreads, 0},
               stream, args);
}

int LaunchAdd(const AddArgs& args, CUstream_st* stream) {
  return Start("RunAdd", RunAdd, {ValueBlocks(args.count), kModelThreads, 0}, stream, args);
}

}  // namespace quire::cuda

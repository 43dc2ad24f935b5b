// The kernels of a model's pass as device code.
#include "cuda/kernels/model-inl.h"
#include "cuda/runtime/give.h"
#include "cuda/runtime/launch.h"
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

void LaunchMatmul(const MatmulArgs& args, LaunchSink& sink) {
  Give("RunMatmul", RunMatmul, {MatmulBlocks(args), kMatmulThreads, kMatmulSharedBytes}, sink,
       args);
}

void LaunchEmbed(const EmbedArgs& args, LaunchSink& sink) {
  Give("RunEmbed", RunEmbed, {args.rows, kModelThreads, 0}, sink, args);
}

void LaunchNorm(const NormArgs& args, LaunchSink& sink) {
  Give("RunNorm", RunNorm, {args.rows, kModelThreads, kNormSharedBytes}, sink, args);
}

void LaunchHeads(const HeadsArgs& args, LaunchSink& sink) {
  Give("RunHeads", RunHeads, {HeadBlocks(args), kHeadThreads, kNormSharedBytes}, sink, args);
}

void LaunchGate(const GateArgs& args, LaunchSink& sink) {
  Give("RunGate", RunGate, {ValueBlocks(uint64_t{args.rows} * args.n), kModelThreads, 0}, sink,
       args);
}

void LaunchAdd(const AddArgs& args, LaunchSink& sink) {
  Give("RunAdd", RunAdd, {ValueBlocks(args.count), kModelThreads, 0}, sink, args);
}

}  // namespace quire::cuda

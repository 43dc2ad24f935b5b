// The floors of the benches as device code.
#include "cuda/kernels/floors-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/start.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(kFloorThreads)
    RunReadFloor(const __grid_constant__ ReadFloorArgs args) {
  CudaThread self;
  ReadFloor(self, args);
}

__global__ void __launch_bounds__(kFloorThreads)
    RunMultiplyFloor(const __grid_constant__ MultiplyFloorArgs args) {
  CudaThread self;
  MultiplyFloor(self, args);
}

__global__ void __launch_bounds__(kMatrixFloorWarps* kWarpLanes)
    RunMatrixFloor(const __grid_constant__ MatrixFloorArgs args) {
  CudaThread self;
  MatrixFloor(self, args);
}

}  // namespace

int LaunchReadFloor(const ReadFloorArgs& args, CUstream_st* stream) {
  return Start("RunReadFloor", RunReadFloor, {kFloorBlocks, kFloorThreads, 0}, stream, args);
}

int LaunchMultiplyFloor(const MultiplyFloorArgs& args, CUstream_st* stream) {
  return Start("RunMultiplyFloor", RunMultiplyFloor, {kFloorBlocks, kFloorThreads, 0}, stream,
               args);
}

int LaunchMatrixFloor(const MatrixFloorArgs& args, CUstream_st* stream) {
  return Start("RunMatrixFloor", RunMatrixFloor,
               {kMatrixFloorBlocks, kMatrixFloorWarps * kWarpLanes, 0}, stream, args);
}

}  // namespace quire::cuda

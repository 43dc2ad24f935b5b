// The floors of the benches as device code.
#include "cuda/kernels/floors-inl.h"
#include "cuda/runtime/give.h"
#include "cuda/runtime/launch.h"
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

void LaunchReadFloor(const ReadFloorArgs& args, LaunchSink& sink) {
  Give("RunReadFloor", RunReadFloor, {kFloorBlocks, kFloorThreads, 0}, sink, args);
}

void LaunchMultiplyFloor(const MultiplyFloorArgs& args, LaunchSink& sink) {
  Give("RunMultiplyFloor", RunMultiplyFloor, {kFloorBlocks, kFloorThreads, 0}, sink, args);
}

void LaunchMatrixFloor(const MatrixFloorArgs& args, LaunchSink& sink) {
  Give("RunMatrixFloor", RunMatrixFloor, {kMatrixFloorBlocks, kMatrixFloorWarps * kWarpLanes, 0},
       sink, args);
}

}  // namespace quire::cuda

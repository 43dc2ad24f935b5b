// The products of a model's pass in matrix instructions, as device code.
#include "cuda/kernels/mma_product-inl.h"
#include "cuda/runtime/give.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/thread.h"

namespace quire::cuda {
namespace {

template <class Shape>
__global__ void __launch_bounds__(Shape::kWarpsOfBlock* kWarpLanes)
    RunMmaProduct(const __grid_constant__ MatmulArgs args) {
  CudaThread self;
  MmaProduct<CudaThread, Shape>(self, args).Run();
}

template <class Shape>
void Launch(const MatmulArgs& args, LaunchSink& sink) {
  Give("RunMmaProduct", RunMmaProduct<Shape>,
       {ProductBlocks<Shape>(args), Shape::kWarpsOfBlock * kWarpLanes, Shape::kSharedBytes}, sink,
       args);
}

}  // namespace

void LaunchMmaProduct(const MatmulArgs& args, LaunchSink& sink) {
  WithProductShape(args, [&](auto shape) { Launch<decltype(shape)>(args, sink); });
}

}  // namespace quire::cuda

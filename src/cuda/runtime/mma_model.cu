// The products of a model's pass in matrix instructions, as device code.
#include "cuda/kernels/mma_product-inl.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/start.h"
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
int Launch(const MatmulArgs& args, CUstream_st* stream) {
  return Start("RunMmaProduct", RunMmaProduct<Shape>,
               {ProductBlocks<Shape>(args), Shape::kWarpsOfBlock * kWarpLanes, Shape::kSharedBytes},
               stream, args);
}

}  // namespace

int LaunchMmaProduct(const MatmulArgs& args, CUstream_st* stream) {
  return WithProductShape(args.rows,
                          [&](auto shape) { return Launch<decltype(shape)>(args, stream); });
}

}  // namespace quire::cuda

// Starts one kernel, or lists it. For .cu files only.
#ifndef QUIRE_CUDA_RUNTIME_START_H_
#define QUIRE_CUDA_RUNTIME_START_H_

#include <cuda_runtime_api.h>

#include "cuda/runtime/launched.h"

namespace quire::cuda {

/// More shared memory than this is had by those kernels only that ask for it before.
inline constexpr uint32_t kSharedUnasked = 48 * 1024;

/// Errors: as Launched
template <class Args>
int Start(const char* name, void (*kernel)(Args), const Grid& grid, CUstream_st* stream,
          const Args& args) {
  cudaError_t error = cudaSuccess;
  if (grid.shared_bytes > kSharedUnasked) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(grid.shared_bytes));
  }
  if (ListedLaunches* const list = ListedLaunches::Current(); list != nullptr) {
    return list->Add(name, reinterpret_cast<const void*>(kernel), grid, error);
  }
  if (error == cudaSuccess) {
    kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(args);
    error = cudaGetLastError();
  }
  return Launched(name, grid, error, stream);
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_START_H_

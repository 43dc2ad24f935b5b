// Functions of the driver's interface, asked for by name: a build machine has no driver to link
// with.
#ifndef QUIRE_CUDA_RUNTIME_DRIVER_CALL_H_
#define QUIRE_CUDA_RUNTIME_DRIVER_CALL_H_

#include <cuda_runtime_api.h>

namespace quire::cuda {

/// False: the driver has no function of this name. Its signature is that of CUDA 12.0.
template <typename Function>
bool FindDriverCall(const char* name, Function* found) {
  constexpr unsigned int kVersion = 12000;
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &result);
  *found = reinterpret_cast<Function>(address);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess && address != nullptr;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_DRIVER_CALL_H_

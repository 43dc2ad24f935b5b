// A thread of a CUDA device, as cuda/simt.h has it. For .cu files only.
#ifndef QUIRE_CUDA_RUNTIME_THREAD_H_
#define QUIRE_CUDA_RUNTIME_THREAD_H_

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

class CudaThread {
 public:
  __device__ explicit CudaThread(std::byte* shared) : shared_(shared) {}

  __device__ uint32_t id() const { return threadIdx.x; }
  __device__ uint32_t count() const { return blockDim.x; }
  __device__ uint32_t block() const { return blockIdx.x; }
  __device__ std::byte* shared() const { return shared_; }
  __device__ void Sync() { __syncthreads(); }

 private:
  std::byte* const shared_;
};

/// The shared memory that the launch asked for.
__device__ inline std::byte* LaunchedShared() {
  extern __shared__ std::byte memory[];
  return memory;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_THREAD_H_

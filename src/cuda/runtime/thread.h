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

  /// Sixteen bytes, both ends aligned to them; not `valid`: zeros, and nothing is read.
  __device__ void CopyAsync(void* to, const void* from, bool valid) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
  }
  /// The copies since the last call are a group.
  __device__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  /// Returns when all groups are there but for the last `kGroups`.
  template <int kGroups>
  __device__ void WaitCopies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
  }

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

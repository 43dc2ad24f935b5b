// A thread of a CUDA device, as cuda/kernels/simt.h has it. For .cu files only.
#ifndef QUIRE_CUDA_RUNTIME_THREAD_H_
#define QUIRE_CUDA_RUNTIME_THREAD_H_

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/bulk.h"

namespace quire::cuda {

/// The shared memory that the launch asked for, aligned as bulk copies need it.
__device__ inline std::byte* LaunchedShared() {
  extern __shared__ __align__(kBulkAlignment) std::byte memory[];
  return memory;
}

class CudaThread {
 public:
  __device__ uint32_t id() const { return threadIdx.x; }
  __device__ uint32_t count() const { return blockDim.x; }
  __device__ uint32_t block() const { return blockIdx.x; }
  /// No member: the compiler has to see that it is shared memory.
  __device__ std::byte* shared() const { return LaunchedShared(); }
  __device__ void Sync() { __syncthreads(); }
  __device__ bool IsLast(uint32_t* arrived, uint32_t blocks) {
    __threadfence();
    __syncthreads();
    const bool is_last = threadIdx.x == 0 && atomicInc(arrived, blocks - 1) == blocks - 1;
    const bool is_ours = __syncthreads_or(is_last) != 0;
    __threadfence();
    return is_ours;
  }

  /// Sixteen bytes, both ends aligned to them; not `valid`: zeros, and nothing is read.
  __device__ void CopyAsync(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(InShared(to)), "l"(from),
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

  // From sm_90 on. The one that arrives is the thread that says how many bytes are to come.
  __device__ void InitBarrier(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(InShared(barrier)) : "memory");
  }
  __device__ void ExpectBytes(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(InShared(barrier)),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void CopyBulk(void* to, const TensorMap& map, const BoxCorner& corner,
                           uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(InShared(to)),
        "l"(&map), "r"(corner.at[0]), "r"(corner.at[1]), "r"(corner.at[2]), "r"(corner.at[3]),
        "r"(InShared(barrier))
        : "memory");
  }
  __device__ void WaitBytes(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}" ::"r"(InShared(barrier)),
        "r"(parity)
        : "memory");
  }
  __device__ void FenceBulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

 private:
  __device__ static uint32_t InShared(const void* address) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(address));
  }
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_THREAD_H_

// What the benches measure kernels of devices against: reading bytes and multiply-adds, nothing
// else.
#ifndef QUIRE_CUDA_FLOORS_H_
#define QUIRE_CUDA_FLOORS_H_

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

inline constexpr uint32_t kFloorThreads = 256;
inline constexpr uint32_t kFloorBlocks = 2048;

/// Reads `bytes` bytes, a multiple of 16, once.
struct ReadFloorArgs {
  const std::byte* from = nullptr;  // aligned to 16
  uint64_t bytes = 0;
  uint32_t* sink = nullptr;  // so that nothing is left out; hardly ever written
};

/// Multiply-adds of one thread for every round of MultiplyFloorArgs.
inline constexpr uint32_t kFloorChains = 16;

struct MultiplyFloorArgs {
  uint32_t rounds = 0;
  float* sink = nullptr;  // [1]; hardly ever written
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_FLOORS_H_

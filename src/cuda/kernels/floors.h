// The floors that the benches measure kernels of devices against: reading bytes, multiply-adds and
// matrix instructions, nothing else.
#ifndef QUIRE_CUDA_KERNELS_FLOORS_H_
#define QUIRE_CUDA_KERNELS_FLOORS_H_

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

  friend bool operator==(const ReadFloorArgs&, const ReadFloorArgs&) = default;
};

/// Multiply-adds of one thread for every round of MultiplyFloorArgs.
inline constexpr uint32_t kFloorChains = 16;

struct MultiplyFloorArgs {
  uint32_t rounds = 0;
  float* sink = nullptr;  // [1]; hardly ever written

  friend bool operator==(const MultiplyFloorArgs&, const MultiplyFloorArgs&) = default;
};

/// Products of matrices in registers. Multiply-adds of one warp for every round: those of so many
/// instructions, each 16 x 8 sums of 16 products.
inline constexpr uint32_t kMatrixFloorWarps = 4;  // of a block
inline constexpr uint32_t kMatrixFloorBlocks = 1056;
inline constexpr uint32_t kMatrixFloorChains = 8;
inline constexpr uint32_t kMatrixMultiplyAdds = 16 * 8 * 16;

struct MatrixFloorArgs {
  uint32_t rounds = 0;
  float* sink = nullptr;  // [1]; hardly ever written

  friend bool operator==(const MatrixFloorArgs&, const MatrixFloorArgs&) = default;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_FLOORS_H_

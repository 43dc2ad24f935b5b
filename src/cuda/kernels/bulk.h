// Bulk copies: one thread asks for a box of an array in global memory, and the device brings it
// into shared memory beside the threads (Hopper's tensor maps). Plain structs for the host's
// compiler and a device's; the copies themselves are those of a Thread (cuda/kernels/simt.h).
#ifndef QUIRE_CUDA_KERNELS_BULK_H_
#define QUIRE_CUDA_KERNELS_BULK_H_

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

/// Axes of an array; the first is contiguous.
inline constexpr uint32_t kBoxAxes = 4;
/// Bytes after which swizzled addresses repeat, at most: how shared memory with boxes is aligned.
inline constexpr uint32_t kBulkAlignment = 1024;
/// Numbers along an axis, at most: coordinates are signed.
inline constexpr uint32_t kCoordinatesMax = INT32_MAX;

/// Numbers of sixteen bits in global memory, and the boxes in which they are copied. The base and
/// the strides are multiples of 16 bytes, and strides are below 2^32.
struct BoxedArray {
  const std::byte* base = nullptr;            // only boxes that are asked for are read
  uint32_t counts[kBoxAxes] = {};             // numbers along each axis, at most kCoordinatesMax
  uint64_t strides_bytes[kBoxAxes - 1] = {};  // along all axes but the first
  // Numbers of a box: 16, 32 or 64 along the first axis, at most 256 along the second, then one.
  uint32_t box[2] = {};
};

/// The device's form of a BoxedArray, made by Device::MakeMap.
struct alignas(128) TensorMap {
  std::byte bytes[128];

  friend bool operator==(const TensorMap&, const TensorMap&) = default;
};

/// The first number of a box. Numbers of the box outside the array, below it or behind it, are
/// zeros.
struct BoxCorner {
  int32_t at[kBoxAxes];
};

/// Where number `at` of a box's rows lies, counted from the box's first byte; `width` is box[0].
/// Eight rows then lie in different banks of shared memory: runs of eight numbers change places
/// (swizzles of 32, 64 or 128 bytes). `at` may count from any multiple of kBulkAlignment.
constexpr uint32_t Swizzled(uint32_t width, uint32_t at) {
  return at ^ (at >> 6 & (width / 8 - 1)) << 3;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_BULK_H_

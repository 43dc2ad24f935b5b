// The rotation that spreads outlier channels over all channels of a head before encoding.
#ifndef QUIRE_CODEC_ROTATE_H_
#define QUIRE_CODEC_ROTATE_H_

#include <cstdint>

namespace quire::codec {

/// Channels that are rotated together: the largest power of two that divides `dim`, at most 1024.
constexpr uint32_t kRotationDimMax = 1024;
constexpr uint32_t RotationDim(uint32_t dim) {
  const uint32_t power = dim & (0u - dim);
  return power < kRotationDimMax ? power : kRotationDimMax;
}

/// Multiplies every run of n = RotationDim(dim) channels of every row by the Hadamard matrix over
/// sqrt(n), in place. Orthonormal and its own inverse, up to rounding.
///
/// For h = 1, 2, 4 ... n/2, every pair (i, i + h) with (i & h) == 0 becomes (a + b, a - b); then
/// each value is multiplied once by (float)(1 / sqrt(n)). Plain f32, so all targets give the same
/// bits.
///
/// Shape: rows [count][dim]
/// Cost:  log2(n) additions for each value; no allocation
void Rotate(float* rows, uint64_t count, uint32_t dim);

}  // namespace quire::codec

#endif  // QUIRE_CODEC_ROTATE_H_

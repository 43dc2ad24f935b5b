// f16 and bf16 as 16-bit codes to and from f32, in scalar code: the judge of every vector
// conversion. Round to nearest, ties to even; subnormals are kept, never flushed.
#ifndef QUIRE_BASE_FLOAT_BITS_H_
#define QUIRE_BASE_FLOAT_BITS_H_

#include <bit>
#include <cstdint>

namespace quire {

/// IEEE binary16 to f32: exact; a signalling NaN becomes quiet. Equals F16C's vcvtph2ps.
constexpr float F16ToF32(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 31u;
  const uint32_t mantissa = code & 0x3ffu;
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  // Zero or subnormal: mantissa * 2^-24, which f32 holds exactly.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// f32 to IEEE binary16: nearest even, overflow to infinity, NaN quieted with the top of its
/// payload. Equals F16C's vcvtps2ph.
constexpr uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude >= 0x38800000u) {  // >= 2^-14: normal. A carry out of the mantissa is right.
    const uint32_t odd = (magnitude >> 13) & 1u;
    const uint32_t rounded = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    return static_cast<uint16_t>(sign | rounded);
  }
  // Subnormal: count 2^-24 units, nearest even. Below 2^-25 (and at it, a tie) nothing is left.
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<uint16_t>(sign);
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126 - exponent;  // 14..24
  const uint32_t odd = (mantissa >> shift) & 1u;
  const uint32_t rounded = (mantissa + (1u << (shift - 1)) - 1u + odd) >> shift;
  return static_cast<uint16_t>(sign | rounded);
}

/// bfloat16 to f32: the upper half of the f32, bit for bit, NaNs included.
constexpr float Bf16ToF32(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}

/// f32 to bfloat16: nearest even, overflow to infinity, NaN quieted with the top of its payload.
constexpr uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7fffu + odd) >> 16);
}

}  // namespace quire

#endif  // QUIRE_BASE_FLOAT_BITS_H_

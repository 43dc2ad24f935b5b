// The three types of weights as single values.
#ifndef QUIRE_MODEL_DTYPE_H_
#define QUIRE_MODEL_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_bits.h"
#include "quire/identity.h"

namespace quire::model {

/// Bytes of one value.
constexpr uint32_t TypeBytes(ComputeType type) { return type == ComputeType::kF32 ? 4 : 2; }

/// The value at `from`, widened exactly.
inline float LoadValue(ComputeType type, const std::byte* from) {
  if (type == ComputeType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t code;
  std::memcpy(&code, from, sizeof(code));
  return type == ComputeType::kF16 ? F16ToF32(code) : Bf16ToF32(code);
}

/// Writes `value` rounded to nearest even.
inline void StoreValue(ComputeType type, float value, std::byte* to) {
  if (type == ComputeType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t code = type == ComputeType::kF16 ? F32ToF16(value) : F32ToBf16(value);
  std::memcpy(to, &code, sizeof(code));
}

/// Round of docs/numerics.md for one value.
inline float RoundValue(ComputeType type, float value) {
  if (type == ComputeType::kF16) return F16ToF32(F32ToF16(value));
  if (type == ComputeType::kBf16) return Bf16ToF32(F32ToBf16(value));
  return value;
}

}  // namespace quire::model

#endif  // QUIRE_MODEL_DTYPE_H_

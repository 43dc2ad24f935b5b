// One stored value at a time, in scalar code: the judge of every vector load and store.
#ifndef QUIRE_CODEC_SCALAR_H_
#define QUIRE_CODEC_SCALAR_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_bits.h"
#include "quire/attention_types.h"

namespace quire::codec {

/// Bytes of one value of a codec that stores values as they are.
constexpr uint32_t ValueBytes(Codec codec) { return codec == Codec::kF32 ? 4 : 2; }

/// f32 to the f16 code that K and V are stored in: nearest even, but a finite value beyond the
/// range becomes +-65504 (docs/numerics.md section 1).
constexpr uint16_t F32ToStoredF16(float value) {
  const uint16_t code = F32ToF16(value);
  const bool finite = (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u;
  return finite && (code & 0x7fffu) == 0x7c00u ? static_cast<uint16_t>(code - 1) : code;
}

/// Value `index` of a plane, widened exactly.
inline float LoadValue(Codec codec, const std::byte* plane, uint64_t index) {
  if (codec == Codec::kF32) {
    float value;
    std::memcpy(&value, plane + index * 4, 4);
    return value;
  }
  uint16_t code;
  std::memcpy(&code, plane + index * 2, 2);
  return codec == Codec::kF16 ? F16ToF32(code) : Bf16ToF32(code);
}

/// Stores `value` as value `index` of a plane.
inline void StoreValue(Codec codec, float value, std::byte* plane, uint64_t index) {
  if (codec == Codec::kF32) {
    std::memcpy(plane + index * 4, &value, 4);
    return;
  }
  const uint16_t code = codec == Codec::kF16 ? F32ToStoredF16(value) : F32ToBf16(value);
  std::memcpy(plane + index * 2, &code, 2);
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_SCALAR_H_

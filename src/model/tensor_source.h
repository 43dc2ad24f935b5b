// Where weights come from: named tensors that can be read piece by piece, and single values of
// their three types.
#ifndef QUIRE_MODEL_TENSOR_SOURCE_H_
#define QUIRE_MODEL_TENSOR_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/float_bits.h"
#include "quire/error.h"
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

struct TensorInfo {
  std::string name;
  ComputeType type = ComputeType::kF32;
  std::vector<uint64_t> shape;
  uint64_t offset_bytes = 0;  // of the first value, where the source counts from
  uint64_t bytes = 0;
};

/// Threads: any number of concurrent readers
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// What messages call it: a file's path.
  virtual const std::string& path() const = 0;
  /// All tensors, sorted by name.
  virtual std::span<const TensorInfo> tensors() const = 0;
  /// Copies bytes [offset_bytes, offset_bytes + out.size()) of a tensor of this source.
  /// Errors: kCorrupt, kIo: the bytes are no longer there
  virtual Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                            std::span<std::byte> out) const = 0;

  /// Null when there is none of that name.
  const TensorInfo* Find(std::string_view name) const;
};

/// Name of a type in a safetensors header: "F32", "F16", "BF16".
std::string_view TypeName(ComputeType type);

/// "[151936, 1024]".
std::string ShapeText(std::span<const uint64_t> shape);

}  // namespace quire::model

#endif  // QUIRE_MODEL_TENSOR_SOURCE_H_

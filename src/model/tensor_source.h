// Where weights come from: named tensors that can be read piece by piece.
#ifndef QUIRE_MODEL_TENSOR_SOURCE_H_
#define QUIRE_MODEL_TENSOR_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

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

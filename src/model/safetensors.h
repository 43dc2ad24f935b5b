// A safetensors file, read with nothing in it believed: header, shapes and offsets are checked when
// it is opened, so that a tensor found is a tensor that can be read.
#ifndef QUIRE_MODEL_SAFETENSORS_H_
#define QUIRE_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "env/file.h"
#include "model/dtype.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// Name in a safetensors header: "F32", "F16", "BF16".
std::string_view TypeName(ComputeType type);

/// "[151936, 1024]".
std::string ShapeText(std::span<const uint64_t> shape);

struct TensorInfo {
  std::string name;
  ComputeType type = ComputeType::kF32;
  std::vector<uint64_t> shape;
  uint64_t offset_bytes = 0;  // of the first value from the start of the file
  uint64_t bytes = 0;
};

/// Longest header that is read; the format's own limit.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

/// Threads: any number of concurrent readers
/// Source:  huggingface.co/docs/safetensors, format
class Safetensors {
 public:
  /// Errors: kNotFound no such file; kCorrupt the header is too long, is no JSON, names a tensor
  ///         twice, or its tensors do not fill the rest of the file without gap or overlap;
  ///         kUnsupported a dtype other than F32, F16, BF16. The message names file and tensor
  static Result<Safetensors> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// All tensors, sorted by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  /// Null when there is none of that name.
  const TensorInfo* Find(std::string_view name) const;

  /// Copies bytes [offset_bytes, offset_bytes + out.size()) of a tensor of this file.
  /// Errors: kCorrupt the file became shorter since it was opened; kIo
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const;

 private:
  Safetensors(RandomAccessFile file, std::vector<TensorInfo> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  RandomAccessFile file_;
  std::vector<TensorInfo> tensors_;
};

/// One tensor to write: its values in the file's type, rows last to first as `shape` says.
struct TensorData {
  std::string name;
  ComputeType type = ComputeType::kF32;
  std::vector<uint64_t> shape;
  std::vector<std::byte> bytes;
};

/// The bytes of a file that holds `tensors` in the order given.
std::string SafetensorsBytes(std::span<const TensorData> tensors);

}  // namespace quire::model

#endif  // QUIRE_MODEL_SAFETENSORS_H_

// A safetensors file, read with nothing in it believed: header, shapes and offsets are checked when
// it is opened, so that a tensor found is a tensor that can be read.
#ifndef QUIRE_MODEL_SAFETENSORS_H_
#define QUIRE_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "env/file.h"
#include "model/tensor_source.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// Longest header that is read; the format's own limit.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

/// Source:  huggingface.co/docs/safetensors, format
class Safetensors final : public TensorSource {
 public:
  /// Errors: kNotFound no such file; kCorrupt the header is too long, is no JSON, names a tensor
  ///         twice, or its tensors do not fill the rest of the file without gap or overlap;
  ///         kUnsupported a dtype other than F32, F16, BF16. The message names file and tensor
  static Result<Safetensors> Open(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  /// Errors: kCorrupt the file became shorter since it was opened; kIo
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override;

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

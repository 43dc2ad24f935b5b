#include "model/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/bits.h"
#include "base/check.h"
#include "base/json.h"
#include "model/tensor_source.h"

namespace quire::model {
namespace {

constexpr uint64_t kLengthBytes = 8;  // the header's length, little-endian
constexpr size_t kRankMax = 8;

constexpr ComputeType kTypes[] = {ComputeType::kF32, ComputeType::kF16, ComputeType::kBf16};

// Parses the entries of one header; everything it refuses names the file and the tensor.
class HeaderReader {
 public:
  HeaderReader(std::string_view path, uint64_t data_offset, uint64_t data_bytes)
      : path_(path), data_offset_(data_offset), data_bytes_(data_bytes) {}

  Result<std::vector<TensorInfo>> Read(std::string_view text) const {
    QUIRE_ASSIGN(const Json header, ParseJson(text, fmt::format("{}: header", path_)));
    if (!header.is_object()) {
      return Fail(ErrorCode::kCorrupt, fmt::format("{}: header is not an object", path_));
    }
    if (const std::optional<std::string> name = FirstDuplicateKey(text)) {
      return Bad(ErrorCode::kCorrupt, *name, "appears twice in the header");
    }
    std::vector<TensorInfo> tensors;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      QUIRE_ASSIGN(TensorInfo tensor, ReadTensor(name, entry));
      tensors.push_back(std::move(tensor));
    }
    QUIRE_TRY(CheckCoverage(tensors));
    std::ranges::sort(tensors, {}, &TensorInfo::name);
    return tensors;
  }

 private:
  std::unexpected<Error> Bad(ErrorCode code, std::string_view tensor, std::string_view why) const {
    return Fail(code, fmt::format("{}: tensor {}: {}", path_, tensor, why));
  }

  Result<TensorInfo> ReadTensor(const std::string& name, const Json& entry) const {
    TensorInfo tensor;
    tensor.name = name;
    QUIRE_ASSIGN(const std::string dtype,
                 JsonGet<std::string>(entry, "dtype", fmt::format("{}: tensor {}", path_, name)));
    const auto* type = std::ranges::find(kTypes, dtype, TypeName);
    if (type == std::end(kTypes)) {
      return Bad(ErrorCode::kUnsupported, name,
                 fmt::format("dtype {}; supported: F32, F16, BF16", dtype));
    }
    tensor.type = *type;
    QUIRE_ASSIGN(tensor.shape, ReadNumbers(name, entry, "shape"));
    if (tensor.shape.size() > kRankMax) {
      return Bad(ErrorCode::kCorrupt, name, fmt::format("more than {} dimensions", kRankMax));
    }
    std::optional<uint64_t> bytes = TypeBytes(tensor.type);
    for (const uint64_t extent : tensor.shape) {
      bytes = bytes ? CheckedMul(*bytes, extent) : std::nullopt;
    }
    if (!bytes) {
      return Bad(ErrorCode::kCorrupt, name,
                 fmt::format("shape {} overflows", ShapeText(tensor.shape)));
    }
    QUIRE_ASSIGN(const std::vector<uint64_t> offsets, ReadNumbers(name, entry, "data_offsets"));
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes_) {
      return Bad(ErrorCode::kCorrupt, name,
                 fmt::format("data_offsets {} are not a range inside the {} data bytes of the file",
                             ShapeText(offsets), data_bytes_));
    }
    tensor.offset_bytes = data_offset_ + offsets[0];
    tensor.bytes = offsets[1] - offsets[0];
    if (tensor.bytes != *bytes) {
      return Bad(ErrorCode::kCorrupt, name,
                 fmt::format("data_offsets span {} bytes, shape {} of {} needs {}", tensor.bytes,
                             ShapeText(tensor.shape), dtype, *bytes));
    }
    return tensor;
  }

  Result<std::vector<uint64_t>> ReadNumbers(std::string_view name, const Json& entry,
                                            const char* field) const {
    const auto member = entry.find(field);
    bool good = member != entry.end() && member->is_array();
    std::vector<uint64_t> numbers;
    for (size_t i = 0; good && i < member->size(); ++i) {
      good = (*member)[i].is_number_unsigned();
      if (good) numbers.push_back((*member)[i].get<uint64_t>());
    }
    if (good) return numbers;
    return Bad(ErrorCode::kCorrupt, name,
               fmt::format("field {} must be an array of whole numbers", field));
  }

  // The format allows neither holes nor overlaps; either would let bytes hide or count twice.
  Result<void> CheckCoverage(const std::vector<TensorInfo>& tensors) const {
    std::vector<const TensorInfo*> by_offset;
    by_offset.reserve(tensors.size());
    for (const TensorInfo& tensor : tensors) by_offset.push_back(&tensor);
    std::ranges::sort(by_offset, {}, [](const TensorInfo* tensor) {
      return std::pair(tensor->offset_bytes, tensor->bytes);
    });
    uint64_t covered = data_offset_;
    for (const TensorInfo* tensor : by_offset) {
      if (tensor->offset_bytes != covered) {
        return Bad(ErrorCode::kCorrupt, tensor->name,
                   fmt::format("begins at data byte {}, but the tensors before it end at {}",
                               tensor->offset_bytes - data_offset_, covered - data_offset_));
      }
      covered += tensor->bytes;
    }
    if (covered != data_offset_ + data_bytes_) {
      return Fail(ErrorCode::kCorrupt, fmt::format("{}: the tensors cover {} of {} data bytes",
                                                   path_, covered - data_offset_, data_bytes_));
    }
    return {};
  }

  std::string_view path_;
  uint64_t data_offset_;
  uint64_t data_bytes_;
};

}  // namespace

Result<Safetensors> Safetensors::Open(const std::string& path) {
  QUIRE_ASSIGN(RandomAccessFile file, RandomAccessFile::Open(path));
  uint64_t header_bytes = 0;
  if (file.bytes() < kLengthBytes) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: {} bytes are too few for a safetensors file", path, file.bytes()));
  }
  QUIRE_TRY(file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  const uint64_t rest_bytes = file.bytes() - kLengthBytes;
  if (header_bytes > rest_bytes || header_bytes > kSafetensorsHeaderBytesMax) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: header of {} bytes; the file has {} after its length, and {} is "
                            "the most that is read",
                            path, header_bytes, rest_bytes, kSafetensorsHeaderBytesMax));
  }
  std::string header(header_bytes, '\0');
  QUIRE_TRY(file.ReadAt(kLengthBytes, std::as_writable_bytes(std::span(header))));
  const HeaderReader reader(path, kLengthBytes + header_bytes, rest_bytes - header_bytes);
  QUIRE_ASSIGN(std::vector<TensorInfo> tensors, reader.Read(header));
  return Safetensors(std::move(file), std::move(tensors));
}

Result<void> Safetensors::Read(const TensorInfo& tensor, uint64_t offset_bytes,
                               std::span<std::byte> out) const {
  QUIRE_CHECK(offset_bytes <= tensor.bytes && out.size() <= tensor.bytes - offset_bytes);
  return file_.ReadAt(tensor.offset_bytes + offset_bytes, out);
}

std::string SafetensorsBytes(std::span<const TensorData> tensors) {
  Json header = Json::object();
  uint64_t offset_bytes = 0;
  for (const TensorData& tensor : tensors) {
    const uint64_t end_bytes = offset_bytes + tensor.bytes.size();
    header[tensor.name] = {{"dtype", TypeName(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset_bytes, end_bytes}}};
    offset_bytes = end_bytes;
  }
  std::string text = header.dump();
  text.resize(RoundUp(text.size(), size_t{8}), ' ');  // the format's alignment of the data
  const uint64_t header_bytes = text.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), kLengthBytes);
  file += text;
  for (const TensorData& tensor : tensors) {
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return file;
}

}  // namespace quire::model

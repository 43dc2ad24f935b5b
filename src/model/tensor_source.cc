#include "model/tensor_source.h"

#include <fmt/core.h>

#include <algorithm>

namespace quire::model {

const TensorInfo* TensorSource::Find(std::string_view name) const {
  const std::span<const TensorInfo> all = tensors();
  const auto found = std::ranges::lower_bound(all, name, {}, &TensorInfo::name);
  return found == all.end() || found->name != name ? nullptr : &*found;
}

std::string_view TypeName(ComputeType type) {
  switch (type) {
    case ComputeType::kF32: return "F32";
    case ComputeType::kF16: return "F16";
    case ComputeType::kBf16: return "BF16";
  }
  return "unknown";
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

}  // namespace quire::model

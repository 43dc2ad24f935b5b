// Views as DLPack tensors. The structs a consumer sees, their arrays and the owner are one object.
#include "quire/dlpack.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

namespace quire {
namespace {

template <typename Managed>
struct Exported {
  Managed managed{};
  std::array<int64_t, 5> shape{};
  std::array<int64_t, 5> strides{};
  std::shared_ptr<const void> owner;
};

std::optional<DLDataType> TypeOf(Codec codec) {
  switch (codec) {
    case Codec::kF32: return DLDataType{.code = kDLFloat, .bits = 32, .lanes = 1};
    case Codec::kF16: return DLDataType{.code = kDLFloat, .bits = 16, .lanes = 1};
    case Codec::kBf16: return DLDataType{.code = kDLBfloat, .bits = 16, .lanes = 1};
    default: return std::nullopt;  // views are of identity codecs only
  }
}

template <typename Managed>
Result<std::unique_ptr<Exported<Managed>>> Export(const TensorView& view,
                                                  std::shared_ptr<const void> owner) {
  if (view.data == nullptr || view.rank > view.shape.size()) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("dlpack: a view {} data of rank {}, at most {}",
                    view.data == nullptr ? "without" : "with", view.rank, view.shape.size()));
  }
  const std::optional<DLDataType> type = TypeOf(view.dtype);
  if (!type) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("dlpack: codec {} has no DLPack type", CodecName(view.dtype)));
  }
  if (view.device != "cpu") {
    return Fail(ErrorCode::kUnsupported, fmt::format("dlpack: device \"{}\"", view.device));
  }
  auto exported = std::make_unique<Exported<Managed>>();
  exported->shape = view.shape;
  exported->strides = view.strides;
  exported->owner = std::move(owner);
  exported->managed.dl_tensor = {.data = const_cast<void*>(view.data),
                                 .device = {.device_type = kDLCPU, .device_id = 0},
                                 .ndim = static_cast<int32_t>(view.rank),
                                 .dtype = *type,
                                 .shape = exported->shape.data(),
                                 .strides = exported->strides.data(),
                                 .byte_offset = 0};
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](Managed* self) {
    delete static_cast<Exported<Managed>*>(self->manager_ctx);
  };
  return exported;
}

}  // namespace

Result<DLManagedTensorVersioned*> ToDLPack(const TensorView& view,
                                           std::shared_ptr<const void> owner) {
  QUIRE_ASSIGN(auto exported, Export<DLManagedTensorVersioned>(view, std::move(owner)));
  exported->managed.version = {.major = DLPACK_MAJOR_VERSION, .minor = DLPACK_MINOR_VERSION};
  exported->managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  return &exported.release()->managed;
}

Result<DLManagedTensor*> ToDLPackLegacy(const TensorView& view, std::shared_ptr<const void> owner) {
  QUIRE_ASSIGN(auto exported, Export<DLManagedTensor>(view, std::move(owner)));
  return &exported.release()->managed;
}

}  // namespace quire

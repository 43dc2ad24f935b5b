#include "cuda/runtime/tensor_maps.h"

#include <cuda.h>
#include <fmt/format.h>

#include <cstring>

#include "cuda/runtime/driver_call.h"

namespace quire::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// Null: the driver has none.
Encode EncodeCall() {
  static const Encode call = [] {
    Encode found = nullptr;
    return FindDriverCall("cuTensorMapEncodeTiled", &found) ? found : nullptr;
  }();
  return call;
}

/// Rows of a box fill what is swizzled.
CUtensorMapSwizzle SwizzleOf(uint32_t width) {
  return width == 16   ? CU_TENSOR_MAP_SWIZZLE_32B
         : width == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : CU_TENSOR_MAP_SWIZZLE_128B;
}

}  // namespace

bool CanMakeTensorMaps() { return EncodeCall() != nullptr; }

Result<TensorMap> MakeTensorMap(const BoxedArray& array) {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap) &&
                alignof(CUtensorMap) <= alignof(TensorMap));
  CUtensorMap map{};
  cuuint64_t counts[kBoxAxes];
  for (uint32_t i = 0; i < kBoxAxes; ++i) counts[i] = array.counts[i];
  cuuint64_t strides[kBoxAxes - 1];
  for (uint32_t i = 0; i + 1 < kBoxAxes; ++i) strides[i] = array.strides_bytes[i];
  const cuuint32_t box[kBoxAxes] = {array.box[0], array.box[1], 1, 1};
  const cuuint32_t steps[kBoxAxes] = {1, 1, 1, 1};
  // A fetch from memory also serves the next rows or stages.
  const CUresult result = EncodeCall()(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kBoxAxes, const_cast<std::byte*>(array.base), counts,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, SwizzleOf(array.box[0]),
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cuda: no tensor map of {} x {} numbers, strides {}, {} and {} bytes, "
                            "in boxes of {} x {} (error {}); --device cuda:N:plain does without",
                            array.counts[0], array.counts[1], strides[0], strides[1], strides[2],
                            box[0], box[1], static_cast<int>(result)));
  }
  TensorMap made{};
  std::memcpy(made.bytes, &map, sizeof(map));
  return made;
}

}  // namespace quire::cuda

// What tests read through views.
#ifndef QUIRE_CACHE_SEQUENCE_VIEW_TEST_UTIL_H_
#define QUIRE_CACHE_SEQUENCE_VIEW_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/test_device.h"
#include "quire/sequence.h"

namespace quire::cache {

/// The bytes of the tokens a view of V may read: whole rows, so a prefix of each head's plane.
inline std::vector<std::byte> ShownBy(const BlockListView& view) {
  std::vector<std::byte> bytes;
  const auto value_bytes = static_cast<int64_t>(CodecBitsPerValue(view.layout().codec) / 8);
  for (uint32_t i = 0; i < view.block_count(); ++i) {
    if (view.slots()[i] == nullptr) continue;  // passed by a window
    const TensorView block = view.block(i);
    const auto* data = static_cast<const std::byte*>(block.data);
    for (int64_t head = 0; head < block.shape[0]; ++head) {
      const auto* plane = OnHost(data + head * block.strides[0] * value_bytes);
      bytes.insert(bytes.end(), plane, plane + block.shape[1] * block.shape[2] * value_bytes);
    }
  }
  return bytes;
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_VIEW_TEST_UTIL_H_

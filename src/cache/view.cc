// Blocks as strided arrays in place.
#include "quire/view.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

TensorView BlockListView::block(uint32_t i) const {
  QUIRE_CHECK(i < slots_.size());
  QUIRE_CHECK_MSG(slots_[i] != nullptr, "a window has passed this block");
  const uint64_t begin = uint64_t{i} * layout_.block_tokens;
  const int64_t value_bytes = static_cast<int64_t>(CodecBitsPerValue(layout_.codec) / 8);
  const int64_t dim = layout_.dim;
  const int64_t block_tokens = layout_.block_tokens;
  const auto tokens =
      static_cast<int64_t>(std::min<uint64_t>(tokens_ - begin, layout_.block_tokens));
  const int64_t head = static_cast<int64_t>(layout_.head_stride_bytes) / value_bytes;
  TensorView view;
  view.data = slots_[i] + layout_.offset_bytes;
  view.dtype = layout_.codec;
  view.rank = 3;
  view.shape = {layout_.heads, tokens, dim};
  view.strides = layout_.inner == InnerAxis::kToken ? std::array<int64_t, 5>{head, 1, block_tokens}
                                                    : std::array<int64_t, 5>{head, dim, 1};
  view.device = "cpu";
  return view;
}

}  // namespace quire

// Blocks as strided arrays in place.
#include "quire/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/verbs/holds.h"

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
  view.device = lease_.holds_->cache().slots().device();
  return view;
}

Result<TensorView> BlockListView::array() const {
  if (slots_.empty() || slots_[0] == nullptr) {
    return Fail(ErrorCode::kUnsupported, "view: no blocks that could be one array");
  }
  const int64_t step_bytes = slots_.size() > 1 ? slots_[1] - slots_[0] : 0;
  for (size_t i = 1; i < slots_.size(); ++i) {
    if (slots_[i] == nullptr || slots_[i] - slots_[i - 1] != step_bytes) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("view: block {} of {} is not as far from the one before it as the "
                              "others; only a contiguous sequence is one array",
                              i, slots_.size()));
    }
  }
  const TensorView first = block(0);
  const int64_t value_bytes = static_cast<int64_t>(CodecBitsPerValue(layout_.codec) / 8);
  const int64_t block_tokens = layout_.block_tokens;
  TensorView view = first;
  // One block after the other in every head: token strides go on across blocks.
  const bool joined =
      slots_.size() == 1 ||
      (layout_.inner == InnerAxis::kDim && step_bytes == block_tokens * layout_.dim * value_bytes);
  if (joined) {
    view.shape[1] = static_cast<int64_t>(tokens_);
    return view;
  }
  view.rank = 4;
  view.shape = {block_count(), layout_.heads, block_tokens, layout_.dim};
  view.strides = {step_bytes / value_bytes, first.strides[0], first.strides[1], first.strides[2]};
  return view;
}

UnleasedView BlockListView::Unleased() const {
  UnleasedView made(layout_, first_token_, tokens_, slots_);
  made.holds_ = lease_.holds_;
  made.held_ = lease_.slots_;
  made.generations_.reserve(made.held_.size());
  for (const SlotId slot : made.held_)
    made.generations_.push_back(made.holds_->cache().slots().generation(slot));
  return made;
}

void BlockListView::Release(std::shared_ptr<Fence> fence) {
  slots_.clear();
  tokens_ = 0;
  lease_.Release(std::move(fence));
}

Result<BlockListView> UnleasedView::Pin() const {
  if (held_.empty()) return BlockListView(layout_, first_token_, tokens_, slots_, Lease());
  auto lease = holds_->HoldAgain(held_, generations_);
  if (!lease) {
    return Fail(
        ErrorCode::kNotFound,
        fmt::format("view: not all of its {} blocks are where they were, as they were; take "
                    "a new one",
                    held_.size()));
  }
  return BlockListView(layout_, first_token_, tokens_, slots_, *std::move(lease));
}

}  // namespace quire

// The reading side of a sequence: gather, views, and what kernels need.
#include <fmt/format.h>

#include <algorithm>

#include "base/bits.h"
#include "cache/sequence_impl.h"
#include "codec/rows.h"

namespace quire {

namespace cache {

Result<StreamLayout> SequenceImpl::LayoutOf(uint32_t layer, StreamRole role) const {
  if (layer >= cursors_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} of a model with {}", layer, cursors_.size()));
  }
  return core_.layout().Find(layer, role);
}

Result<void> SequenceImpl::Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                                  std::span<float> out) const {
  // The view first: what it shows stays readable, whatever the writer does meanwhile.
  QUIRE_ASSIGN(const BlockListView view, View(layer, role));
  const StreamLayout& layout = view.layout();
  if (begin > end || end > view.tokens()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("gather: tokens [{}, {}) of layer {} with {} tokens", begin, end, layer,
                            view.tokens()));
  }
  const uint64_t values = layout.heads * (end - begin) * layout.dim;
  if (out.size() < values) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("gather: {} values do not fit into {}", values, out.size()));
  }
  for (uint64_t block = begin / layout.block_tokens; block * layout.block_tokens < end; ++block) {
    if (view.slots()[block] == nullptr) {
      return Fail(ErrorCode::kNotFound,
                  fmt::format("gather: tokens [{}, {}) of layer {}: its window has passed tokens "
                              "[{}, {})",
                              begin, end, layer, block * layout.block_tokens,
                              (block + 1) * layout.block_tokens));
    }
  }
  const int64_t head_stride = static_cast<int64_t>(end - begin) * layout.dim;
  for (uint64_t position = begin; position < end;) {
    const auto in_block = static_cast<uint32_t>(position % layout.block_tokens);
    const auto count =
        static_cast<uint32_t>(std::min<uint64_t>(end - position, layout.block_tokens - in_block));
    codec::ReadRows(layout, view.slots()[position / layout.block_tokens], in_block, count,
                    out.data() + (position - begin) * layout.dim, head_stride);
    position += count;
  }
  return {};
}

Result<BlockListView> SequenceImpl::View(uint32_t layer, StreamRole role) const {
  QUIRE_ASSIGN(const StreamLayout layout, LayoutOf(layer, role));
  MutexLock lock(mutex_);
  const uint64_t tokens = cursor(layer);
  const uint64_t blocks = DivUp(tokens, layout.block_tokens);
  const Part& part = parts_[core_.layout().part_of(layer)];
  const auto end = static_cast<int64_t>(blocks);
  std::vector<SlotId> held(part.slots.begin(), part.slots.begin() + end);
  std::erase(held, SlotId::None());
  core_.HoldSlots(held);
  return BlockListView(layout, tokens, {part.pointers.begin(), part.pointers.begin() + end},
                       core_.MakeLease(std::move(held)));
}

LayerBlocks SequenceImpl::Blocks(uint32_t layer) const {
  const codec::SlotLayout& layout = core_.layout();
  // Codecs that store values as they are have one form: open and sealed are the same bytes.
  const Part& part = parts_[layout.part_of(layer)];
  return {.sealed = part.pointers,
          .open = part.pointers,
          .key = layout.key(layer),
          .value = layout.value(layer),
          .tokens = cursor(layer)};
}

}  // namespace cache

Result<void> GatherPadded(std::span<const Sequence* const> sequences, uint32_t layer,
                          StreamRole role, uint64_t tokens_max, std::span<float> out) {
  struct Part {
    BlockListView view;
    uint64_t tokens;
  };
  std::vector<Part> parts;
  uint64_t values = 0;
  for (const Sequence* sequence : sequences) {
    QUIRE_ASSIGN(BlockListView view, sequence->View(layer, role));
    const uint64_t tokens = sequence->length();
    if (tokens > tokens_max) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("gather: sequence {} has {} tokens, tokens_max is {}",
                              sequence->id().number(), tokens, tokens_max));
    }
    const auto added =
        CheckedProduct(tokens_max, uint64_t{view.layout().heads}, uint64_t{view.layout().dim});
    if (!added || *added > out.size() - values) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("gather: {} sequences of {} tokens do not fit into {} values",
                              sequences.size(), tokens_max, out.size()));
    }
    values += *added;
    parts.push_back({std::move(view), tokens});
  }
  std::ranges::fill(out.first(values), 0.0f);
  uint64_t offset = 0;
  for (const Part& part : parts) {
    const StreamLayout& layout = part.view.layout();
    const uint64_t plane = tokens_max * layout.dim;  // of one head, padded
    for (uint64_t begin = 0; begin < part.tokens; begin += layout.block_tokens) {
      const std::byte* slot = part.view.slots()[begin / layout.block_tokens];
      if (slot == nullptr) continue;
      const auto count =
          static_cast<uint32_t>(std::min<uint64_t>(part.tokens - begin, layout.block_tokens));
      codec::ReadRows(layout, slot, 0, count, out.data() + offset + begin * layout.dim,
                      static_cast<int64_t>(plane));
    }
    offset += plane * layout.heads;
  }
  return {};
}

}  // namespace quire

// Which tokens a query sees, and in which form: for the host's compiler and a device's.
#ifndef QUIRE_ATTENTION_VISIBLE_H_
#define QUIRE_ATTENTION_VISIBLE_H_

#include <algorithm>
#include <cstdint>

#include "quire/attention_types.h"

namespace quire::attention {

/// Layouts of the blocks that a row reads open.
constexpr const StreamLayout& OpenKey(const AttentionShape& shape) {
  return shape.open_key.heads == 0 ? shape.key : shape.open_key;
}
constexpr const StreamLayout& OpenValue(const AttentionShape& shape) {
  return shape.open_value.heads == 0 ? shape.value : shape.open_value;
}

/// The first block that the row at `position` reads open; all after it are too, its own the last.
constexpr uint64_t FirstOpenBlock(const AttentionShape& shape, uint64_t position) {
  const uint64_t own_block = position / shape.key.block_tokens;
  return own_block - std::min<uint64_t>(own_block, shape.open_blocks);
}

/// Whether the row at `position` reads a block open; `has_open`: it has a slot in the open table.
constexpr bool IsReadOpen(const AttentionShape& shape, uint64_t position, uint64_t block,
                          bool has_open) {
  if (shape.open_blocks == kOpenWherePresent) return has_open;
  return block >= FirstOpenBlock(shape, position);
}

/// Tokens [begin, end) of a split, counted from its first.
struct TokenRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  bool operator==(const TokenRange&) const = default;
};

/// The tokens of one split that one query sees: at most the sinks and the window, ascending, with a
/// gap between them.
struct VisibleTokens {
  uint32_t count = 0;
  TokenRange ranges[2];

  bool operator==(const VisibleTokens&) const = default;
};

/// docs/numerics.md section 2, step 2, for split `split` and the query at `position`.
constexpr VisibleTokens VisibleInSplit(const AttentionShape& shape, uint64_t position,
                                       uint64_t split) {
  const uint64_t first = split * kSplitTokens;
  const uint64_t last_end = std::min(first + kSplitTokens, position + 1);
  VisibleTokens visible;
  if (first >= last_end) return visible;
  const bool whole = shape.window_tokens == 0 || position < shape.window_tokens;
  const uint64_t window_begin = std::max(first, whole ? 0 : position + 1 - shape.window_tokens);
  const uint64_t sinks_end = std::min<uint64_t>(last_end, whole ? 0 : shape.sink_tokens);
  const TokenRange sinks{0, static_cast<uint32_t>(sinks_end - first)};
  const uint64_t begin = sinks_end >= window_begin ? first : window_begin;
  const TokenRange rest{static_cast<uint32_t>(begin - first),
                        static_cast<uint32_t>(last_end - first)};
  // With constant indices: a run-time index would put the ranges into a device's memory.
  const bool has_sinks = sinks_end > first && sinks_end < window_begin;
  const bool has_rest = begin < last_end;
  if (has_sinks) {
    visible.ranges[0] = sinks;
    if (has_rest) visible.ranges[1] = rest;
  } else if (has_rest) {
    visible.ranges[0] = rest;
  }
  visible.count = (has_sinks ? 1 : 0) + (has_rest ? 1 : 0);
  return visible;
}

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_VISIBLE_H_

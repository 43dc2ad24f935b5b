// How far back the layers of one group look, and which of a sequence's blocks they still need.
#ifndef QUIRE_CACHE_SEQUENCE_REACH_H_
#define QUIRE_CACHE_SEQUENCE_REACH_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "base/bits.h"
#include "quire/attention_types.h"
#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::cache {

/// Layer groups: the layers with full attention, those with a window.
inline constexpr uint32_t kGroupsMax = 2;
/// Slot classes: the sealed form of every group, then, where codecs encode, the open form of each.
inline constexpr uint32_t kClassesMax = 2 * kGroupsMax;
/// One T for every group or class; entries beyond their number stay default.
template <typename T>
using PerGroup = std::array<T, kGroupsMax>;
template <typename T>
using PerClass = std::array<T, kClassesMax>;

/// Blocks [0, sink_blocks) and those from first_needed on; with full attention all of them, of the
/// open form only those that are not whole yet and so many before them. Of a sequence that streams,
/// layers with full attention need in memory the blocks that cannot be streamed yet. It releases
/// whole splits, with windows as well (but sinks): a split is one record, of all layers.
class WindowReach {
 public:
  WindowReach() = default;
  static WindowReach OfOpenForm(const NumericProfile& profile) {
    WindowReach reach;
    reach.open_ = true;
    reach.block_tokens_ = profile.block_tokens;
    reach.residual_blocks_ = profile.residual_blocks();
    return reach;
  }
  static WindowReach OfResident(uint64_t resident_tokens, uint32_t block_tokens) {
    WindowReach reach;
    reach.resident_tokens_ = resident_tokens;
    reach.block_tokens_ = block_tokens;
    return reach.BySplits();
  }
  WindowReach(const LayerGroup& group, uint32_t block_tokens)
      : window_tokens_(group.kind == LayerKind::kWindow ? group.window_tokens : 0),
        block_tokens_(block_tokens),
        sink_blocks_(DivUp(uint64_t{group.sink_tokens}, uint64_t{block_tokens})) {}

  /// The same, but for blocks that are released by whole splits.
  WindowReach BySplits() const {
    WindowReach reach = *this;
    reach.blocks_at_once_ = kSplitTokens / block_tokens_;
    return reach;
  }

  /// Whether blocks are released while the sequence lives.
  bool windowed() const { return window_tokens_ != 0 || open_ || streams(); }
  uint64_t sink_blocks() const { return sink_blocks_; }
  /// Whether released blocks are still read: from the store, as a stream.
  bool streams() const { return resident_tokens_ != 0; }
  /// Blocks that are released together.
  uint64_t blocks_at_once() const { return blocks_at_once_; }

  /// First block after the sinks that a query at `position` or later may see, or the last block
  /// before `position` if it sees none: holding that block keeps its whole path in the index.
  uint64_t first_needed(uint64_t position) const {
    if (open_) {
      const uint64_t own_block = position / block_tokens_;
      return own_block - std::min(own_block, residual_blocks_);
    }
    if (streams()) {
      const uint64_t passed = position - std::min(position, resident_tokens_);
      return RoundDown(passed / block_tokens_, blocks_at_once_);
    }
    if (!windowed() || position < window_tokens_) return sink_blocks_;
    const uint64_t seen = (position + 1 - window_tokens_) / block_tokens_;
    const uint64_t last = std::min(seen, (position - 1) / block_tokens_);
    return std::max(sink_blocks_, RoundDown(last, blocks_at_once_));
  }

  /// Most blocks needed at once when at most `step_tokens` are written between two commits.
  uint64_t blocks_max(uint64_t step_tokens) const {
    if (!windowed()) return std::numeric_limits<uint64_t>::max();
    if (open_) return DivUp(step_tokens, block_tokens_) + 1 + residual_blocks_;
    // Tokens [length + 1 - window, length + step), from anywhere in a block, or in a split.
    const uint64_t before = streams() ? resident_tokens_ : window_tokens_;
    const uint64_t tokens = CheckedAdd(before, step_tokens).value_or(UINT64_MAX);
    return sink_blocks_ + DivUp(tokens, block_tokens_) + blocks_at_once_;
  }

 private:
  uint64_t window_tokens_ = 0;    // 0: everything
  uint64_t resident_tokens_ = 0;  // 0: it does not stream
  bool open_ = false;
  uint64_t residual_blocks_ = 0;  // of the open form
  uint64_t block_tokens_ = 1;
  uint64_t blocks_at_once_ = 1;
  uint64_t sink_blocks_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_REACH_H_

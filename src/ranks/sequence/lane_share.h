// Which tokens of a text are a rank's: those of its lanes' splits (docs/numerics.md section 2).
#ifndef QUIRE_RANKS_SEQUENCE_LANE_SHARE_H_
#define QUIRE_RANKS_SEQUENCE_LANE_SHARE_H_

#include <cstdint>

#include "quire/attention_types.h"
#include "quire/geometry.h"

namespace quire::ranks::sequence {

/// Of `ranks` ranks, rank r owns the lanes l with l mod ranks = r: whole subtrees of the tree on
/// which lanes merge. Of every `ranks` consecutive splits it owns one. The tokens of its splits,
/// one after the other, are its *share* of a text.
class LaneShare {
 public:
  /// Needs ranks a power of two, at most kLanes, and rank < ranks.
  constexpr LaneShare(uint32_t rank, uint32_t ranks) : rank_(rank), ranks_(ranks) {}

  constexpr uint32_t rank() const { return rank_; }
  constexpr uint32_t ranks() const { return ranks_; }
  constexpr LaneSet lanes() const { return LanesOf(rank_); }
  constexpr LaneSet LanesOf(uint32_t rank) const {
    LaneSet lanes = 0;
    for (uint32_t lane = rank; lane < kLanes; lane += ranks_) lanes |= LaneSet{1} << lane;
    return lanes;
  }
  constexpr bool Owns(uint64_t position) const { return position / kSplitTokens % ranks_ == rank_; }
  /// Own tokens among the first `tokens` of the text.
  constexpr uint64_t Before(uint64_t tokens) const {
    const uint64_t splits = tokens / kSplitTokens;
    const uint64_t own = (splits + ranks_ - 1 - rank_) / ranks_;
    return own * kSplitTokens + (Owns(tokens) ? tokens % kSplitTokens : 0);
  }
  /// Where token `i` of the share stands in the text.
  constexpr uint64_t PositionOf(uint64_t i) const {
    return (i / kSplitTokens * ranks_ + rank_) * kSplitTokens + i % kSplitTokens;
  }
  /// The end of the split that a position lies in.
  static constexpr uint64_t SplitEnd(uint64_t position) {
    return (position / kSplitTokens + 1) * kSplitTokens;
  }
  /// Most own tokens among `tokens` consecutive ones of the text.
  constexpr uint64_t MostOf(uint64_t tokens) const {
    const uint64_t own = (tokens / (uint64_t{kSplitTokens} * ranks_) + 1) * kSplitTokens;
    return own < tokens ? own : tokens;
  }

  /// What a cache of shares has, for a model of this geometry: its windows count own tokens.
  Geometry GeometryOf(Geometry geometry) const;

 private:
  uint32_t rank_;
  uint32_t ranks_;
};

inline Geometry LaneShare::GeometryOf(Geometry geometry) const {
  for (LayerGroup& group : geometry.groups) {
    if (group.kind != LayerKind::kWindow || ranks_ == 1) continue;
    // A query that is not in the share sees as many own tokens before its place there.
    group.window_tokens = static_cast<uint32_t>(MostOf(group.window_tokens) + 1);
    group.sink_tokens = static_cast<uint32_t>(Before(group.sink_tokens));
  }
  return geometry;
}

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_LANE_SHARE_H_

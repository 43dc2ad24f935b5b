// How many prompt tokens a step takes: more while there is headroom, fewer under pressure.
#ifndef QUIRE_SERVE_CHUNK_SIZE_H_
#define QUIRE_SERVE_CHUNK_SIZE_H_

#include <algorithm>
#include <cstdint>

namespace quire::serve {

/// Between two bounds, in factors of two. Starts at the lower one.
class ChunkSize {
 public:
  ChunkSize(uint32_t tokens_min, uint32_t tokens_max)
      : tokens_min_(tokens_min), tokens_max_(tokens_max), tokens_(tokens_min) {}

  uint32_t tokens() const { return tokens_; }

  /// After a chunk: `free_tokens` is what the cache could still take, evicting what nobody needs.
  /// A chunk doubles while four of its size would fit, and halves where two would not.
  void Adapt(uint64_t free_tokens) {
    if (free_tokens >= kGrowAt * uint64_t{tokens_}) {
      tokens_ = static_cast<uint32_t>(std::min<uint64_t>(2 * uint64_t{tokens_}, tokens_max_));
    } else if (free_tokens < kShrinkBelow * uint64_t{tokens_}) {
      Shrink();
    }
  }
  /// A chunk found no room.
  void Shrink() { tokens_ = std::max(tokens_ / 2, tokens_min_); }

 private:
  static constexpr uint64_t kGrowAt = 4;
  static constexpr uint64_t kShrinkBelow = 2;

  const uint32_t tokens_min_;
  const uint32_t tokens_max_;
  uint32_t tokens_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_CHUNK_SIZE_H_

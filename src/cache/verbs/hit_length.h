// The one rule for how much of a prompt may come from the cache.
#ifndef QUIRE_CACHE_VERBS_HIT_LENGTH_H_
#define QUIRE_CACHE_VERBS_HIT_LENGTH_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "cache/sequence/reach.h"

namespace quire::cache {

/// Whole blocks of a prompt that could be reused if all of them were cached: never inside a block,
/// and at least one token is computed, because its logits are wanted.
constexpr uint64_t ReusableBlocks(uint64_t prompt_tokens, uint32_t block_tokens) {
  return prompt_tokens == 0 ? 0 : (prompt_tokens - 1) / block_tokens;
}

/// Blocks that are reused, given that the first `found` of a prompt are in the index: the largest
/// boundary at which every group has the blocks that later queries can see. `has(group, block)`
/// tells whether the bytes of a windowed group are still there; those of full attention always are.
/// Open forms count as groups too.
///
/// Cost: O(found) for each windowed group
template <typename Has>
uint64_t HitBlocks(uint64_t prompt_tokens, uint32_t block_tokens, uint64_t found,
                   std::span<const WindowReach> reaches, const Has& has) {
  const uint64_t most = std::min(ReusableBlocks(prompt_tokens, block_tokens), found);
  if (std::ranges::none_of(reaches, &WindowReach::windowed)) return most;
  PerClass<uint64_t> run_begin{};  // of the unbroken run that ends at the boundary
  PerClass<bool> sinks_broken{};
  uint64_t hit = 0;
  for (uint64_t boundary = 1; boundary <= most; ++boundary) {
    bool whole = true;
    for (uint32_t group = 0; group < reaches.size(); ++group) {
      const WindowReach& reach = reaches[group];
      if (!reach.windowed()) continue;
      if (!has(group, boundary - 1)) {
        run_begin[group] = boundary;
        sinks_broken[group] = sinks_broken[group] || boundary <= reach.sink_blocks();
      }
      whole = whole && !sinks_broken[group] &&
              run_begin[group] <= reach.first_needed(boundary * block_tokens);
    }
    if (whole) hit = boundary;
  }
  return hit;
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_HIT_LENGTH_H_

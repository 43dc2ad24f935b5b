// The one rule for how much of a prompt may come from the cache.
#ifndef QUIRE_CACHE_HIT_LENGTH_H_
#define QUIRE_CACHE_HIT_LENGTH_H_

#include <algorithm>
#include <cstdint>

namespace quire::cache {

/// Whole blocks of a prompt that could be reused if all of them were cached: never inside a block,
/// and at least one token is computed, because its logits are wanted.
constexpr uint64_t ReusableBlocks(uint64_t prompt_tokens, uint32_t block_tokens) {
  return prompt_tokens == 0 ? 0 : (prompt_tokens - 1) / block_tokens;
}

/// Blocks that are reused, given the length of the cached run at the start of the prompt.
constexpr uint64_t HitBlocks(uint64_t prompt_tokens, uint32_t block_tokens,
                             uint64_t resident_blocks) {
  return std::min(ReusableBlocks(prompt_tokens, block_tokens), resident_blocks);
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_HIT_LENGTH_H_

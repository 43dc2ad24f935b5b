// What of a prompt is here, and why the rest is not: verbs under the lock.
#ifndef QUIRE_CACHE_LOOKUP_H_
#define QUIRE_CACHE_LOOKUP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cache/state.h"

namespace quire::cache {

/// What the directory has of a prompt.
struct FoundPath {
  std::vector<BlockId> blocks{};     // those that can be used
  std::vector<MissReason> beyond{};  // of each block found after them: why it cannot
  Digest last_key{};                 // of the last block found, or of the root
  uint64_t elsewhere = 0;            // blocks that the account has under another root
};
FoundPath FindPath(const State& state, std::span<const TokenId> prompt, const Place& place);

/// What is remembered of the gone blocks with these keys, each the child of the one before. False:
/// it ends before the last of them.
bool FindGhosts(State& state, const Place& place, std::span<const Digest> keys,
                std::vector<Ghost>& found);

/// Divides the prompt after the hit into runs with one reason each.
std::vector<MissRun> MissesOf(std::span<const TokenId> prompt, uint32_t block_tokens,
                              const FoundPath& path, std::span<const Ghost> ghosts);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_LOOKUP_H_

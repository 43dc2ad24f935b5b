// What of a prompt is here, and why the rest is not. The path is looked at piece by piece, each
// under the lock; nothing is held meanwhile, so what is found is looked at again when it is leased.
#ifndef QUIRE_CACHE_LOOKUP_H_
#define QUIRE_CACHE_LOOKUP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cache/state.h"

namespace quire::cache {

/// What the directory has of a prompt.
struct FoundPath {
  std::vector<BlockId> blocks{};          // found, then those that can be used
  std::vector<uint64_t> keys{};           // PolicyKey of each: its id may be another's later
  PerClass<std::vector<SlotId>> slots{};  // of each
  uint64_t good = 0;                      // the first so many may be handed out
  std::vector<Standing> bad{};            // of those after them
  Digest last_key{};                      // of the last one found, or of the root
  std::vector<MissReason> beyond{};       // of each found after those that can be used: why not
  uint64_t elsewhere = 0;                 // blocks that the account has under another root
};

/// Adds the next blocks of a prompt, of which `tokens` are the reusable ones. False: that was all.
bool FindMore(const State& state, std::span<const TokenId> tokens, const Place& place,
              FoundPath& path);
/// Cuts it to what can be used, as its slots say.
void CutToHit(const SlotClasses& classes, uint64_t prompt_tokens, FoundPath& path);
/// Leases blocks [begin, end) of a path that was found, and holds the slots that a query after it
/// needs; `leased` is the block before them that has a lease until now, or none. False: not all is
/// as it was found. What was held is appended in any case.
bool LeaseSome(State& state, const FoundPath& path, uint64_t begin, uint64_t end, BlockId& leased,
               std::vector<SlotId>& held);

/// What is remembered of the gone blocks with these keys, each the child of the one before. False:
/// it ends before the last of them.
bool FindGhosts(State& state, const Place& place, std::span<const Digest> keys,
                std::vector<Ghost>& found);

/// Divides the prompt after the hit into runs with one reason each.
std::vector<MissRun> MissesOf(std::span<const TokenId> prompt, uint32_t block_tokens,
                              const FoundPath& path, std::span<const Ghost> ghosts);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_LOOKUP_H_

// What of a prompt is here, and why the rest is not. The path is looked at piece by piece, each
// under the lock; nothing is held meanwhile, so what is found is looked at again when it is leased.
#ifndef QUIRE_CACHE_VERBS_LOOKUP_H_
#define QUIRE_CACHE_VERBS_LOOKUP_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/state/locked_state.h"
#include "cache/verbs/hit_length.h"

namespace quire::cache {

/// What the directory has of a prompt.
struct FoundPath {
  std::vector<BlockId> blocks{};          // found, then those that can be used
  std::vector<uint64_t> keys{};           // PolicyKey of each: its id may be another's later
  PerClass<std::vector<SlotId>> slots{};  // of each
  std::vector<Digest> digests{};          // whole key of each, where a load may need them
  uint64_t good = 0;                      // the first so many may be handed out
  std::vector<BlockState> bad{};          // of those after them
  Digest last_key{};                      // of the last one found, or of the root
  std::vector<MissReason> beyond{};       // of each found after those that can be used: why not
  uint64_t elsewhere = 0;                 // blocks that the account has under another root
  std::optional<uint64_t> differs_at{};   // first token that differs from what is there behind it
};

/// How far the search under an account's other roots has come.
struct SearchElsewhere {
  size_t root = 0;        // of those of the account
  Digest root_key{};      // another one may stand there later
  uint64_t blocks = 0;    // found below it
  BlockId last{};         // of these
  uint64_t last_key = 0;  // its id may be another's later
};

/// What of a prompt the store has besides what is resident.
struct LoadList {
  uint64_t blocks = 0;         // of the prompt that would be resident with it; 0: nothing to load
  uint64_t tokens = 0;         // of these, after the resident ones
  uint64_t bytes = 0;          // to be read
  Digest parent_key{};         // of the first entry
  std::vector<Digest> keys{};  // of the blocks from the resident ones to `blocks`
  std::vector<PerClass<bool>> wanted{};  // of each, which forms are to be loaded
};

/// Adds the next blocks of a prompt, of which `tokens` are the reusable ones. False: that was all.
bool FindMore(const State& state, std::span<const TokenId> tokens, const PublishLocation& location,
              FoundPath& path);
/// Goes on looking for the longest prefix of the tokens that the account has below another root of
/// the same domain, as far as it was not erased: path.elsewhere. It only explains a miss, so what
/// comes and goes meanwhile may be overlooked. False: that was all.
bool FindElsewhere(const State& state, std::span<const TokenId> tokens,
                   const PublishLocation& location, SearchElsewhere& search, FoundPath& path);
/// Blocks of a path that can be used: `found` of them are known, and has(slot_class, block) tells
/// of which windows and residual tokens have the bytes. The second number: were there all twins.
template <typename Has>
std::pair<uint64_t, uint64_t> UsableBlocks(const SlotClasses& classes, uint64_t prompt_tokens,
                                           uint64_t found, const Has& has) {
  const auto hit_of = [&](uint64_t blocks, std::span<const WindowReach> reaches) {
    return HitBlocks(prompt_tokens, classes.block_tokens(), blocks, reaches, has);
  };
  const uint64_t sealed = hit_of(found, classes.reaches().first(classes.group_count()));
  if (classes.residual_blocks() == 0) return {sealed, sealed};
  return {hit_of(sealed, classes.reaches()), sealed};
}
/// Cuts it to what can be used, as its slots say.
void CutToHit(const SlotClasses& classes, uint64_t prompt_tokens, FoundPath& path);
/// What a query after a path that was found needs of its block i. Nothing: it is not as it was
/// found, or it may not be handed out.
std::optional<PerClass<SlotId>> NeededOf(const State& state, const FoundPath& path, uint64_t i);
/// Leases blocks [begin, end) of a path that was found, and holds the slots that a query after it
/// needs: those are the path's slots from then on, wherever its blocks have moved since they were
/// found. `leased` is the block before them that has a lease until now, or none. False: not all is
/// as it was found. What was held is appended in any case.
bool LeaseSome(State& state, FoundPath& path, uint64_t begin, uint64_t end, BlockId& leased,
               std::vector<SlotId>& held);

/// What is remembered of the gone blocks with these keys, each the child of the one before. False:
/// it ends before the last of them.
bool FindGhosts(State& state, const PublishLocation& location, std::span<const Digest> keys,
                std::vector<Ghost>& found);

/// Divides the prompt after the hit into runs with one reason each.
std::vector<MissRun> MissesOf(std::span<const TokenId> prompt, uint32_t block_tokens,
                              const FoundPath& path, std::span<const Ghost> ghosts);

/// Runs these over a whole prompt, and asks the store for the rest.
///
/// Threads: any
class Search {
 public:
  explicit Search(LockedState& cache) : cache_(cache) {}

  /// What memory has of a prompt, and whether there is more under another root.
  FoundPath FindPath(std::span<const TokenId> prompt, const PublishLocation& location);
  /// What memory has of these tokens. `explains`: says of what is missing whether it is there under
  /// another root.
  FoundPath FindBlocks(std::span<const TokenId> tokens, const PublishLocation& location,
                       bool explains);
  /// What of a prompt the store has besides a path that was found. Needs a store.
  void FindBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                 const FoundPath& path, LoadList& load) const;
  /// How many blocks of a prompt the account has below under another root. Needs a store.
  uint64_t FindElsewhereBelow(std::span<const TokenId> prompt,
                              const PublishLocation& location) const;
  /// What is remembered of the blocks after the one with `key`, up to the first that is not.
  std::vector<Ghost> FindGhosts(std::span<const TokenId> tokens, Digest key,
                                const PublishLocation& location);
  /// Holds what a query after a path that was found needs; the path's slots are then those that are
  /// held. False: some of it went since it was found, and nothing is held.
  bool LeasePath(FoundPath& path, std::vector<SlotId>& held);

 private:
  std::vector<Digest> KeysBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                                const FoundPath& path) const;

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_LOOKUP_H_

// Which blocks of a prompt are resident, and why the others are not. The path is looked up piece by
// piece under the lock; nothing is held between pieces, so blocks are checked again when they are
// leased.
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

/// The blocks of a prompt that the directory has.
struct FoundPath {
  std::vector<BlockId> blocks{};          // found, then those that can be used
  std::vector<uint64_t> keys{};           // PolicyKey of each: the id may name another block later
  PerClass<std::vector<SlotId>> slots{};  // of each
  std::vector<Digest> digests{};          // whole key of each, where a load may need them
  std::vector<float> errors{};            // with a precision ladder: FormError::largest of each
  float error_max = 0.0f;                 // largest error that the request accepts
  uint64_t good = 0;                      // the first so many may be handed out
  std::vector<BlockState> bad{};          // the states of those after them
  Digest last_key{};                      // of the last one found, or of the root
  std::vector<MissReason> beyond{};       // of each found block after the usable ones: why it
                                          // cannot be used
  uint64_t elsewhere = 0;                 // blocks that the account has under another root
  std::optional<uint64_t> differs_at{};   // first token that differs from the block cached there
};

/// Progress of the search under an account's other roots.
struct SearchElsewhere {
  size_t root = 0;        // index among the roots of the account
  Digest root_key{};      // another root may have this index later
  uint64_t blocks = 0;    // found below it
  BlockId last{};         // of these
  uint64_t last_key = 0;  // its id may name another block later
};

/// The blocks of a prompt that the store has besides the resident ones.
struct LoadList {
  uint64_t blocks = 0;         // blocks of the prompt that would be resident after the load; 0:
                               // nothing to load
  uint64_t tokens = 0;         // of these, after the resident ones
  uint64_t uncertain_tokens = 0;  // of these, that a remote may have
  uint64_t bytes = 0;          // to be read
  Digest parent_key{};         // of the first entry
  std::vector<Digest> keys{};  // of the blocks from the resident ones to `blocks`
  std::vector<PerClass<bool>> wanted{};  // of each block, which forms are to be loaded
  /// With a precision ladder: the store has the blocks of the prompt up to here, and the request
  /// accepts none of them. 0: it does, or the store has none. Of these, those after the resident
  /// ones are in `keys`.
  uint64_t refused_blocks = 0;
  /// The store has blocks from `first` of the prompt on as one record.
  struct Run {
    uint64_t first = 0;
    Digest key{};
  };
  std::vector<Run> runs{};  // ascend
};

/// Adds the next blocks of a prompt, whose reusable tokens are `tokens`. False: that was all.
bool FindMore(const State& state, std::span<const TokenId> tokens, const PublishLocation& location,
              FoundPath& path);
/// Continues the search for the longest prefix of the tokens that the account has below another
/// root of the same domain, as far as it was not erased: path.elsewhere. It only explains a miss,
/// so blocks that come and go meanwhile may be overlooked. False: that was all.
bool FindElsewhere(const State& state, std::span<const TokenId> tokens,
                   const PublishLocation& location, SearchElsewhere& search, FoundPath& path);
/// Blocks of a path that can be used: `found` of them are known, and has(slot_class, block) says
/// which of them have the bytes of windows and residual tokens. The second number: the same if all
/// twins were present.
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
/// The same with a precision ladder, of `found` blocks: those that have their open forms, or an
/// error that the request accepts. What a row cannot read open, because a later block of its split
/// is left in the sealed form (kOpenWherePresent), needs such an error too.
template <typename HasOpen, typename Accepts>
uint64_t UsableOfLadder(uint64_t prompt_tokens, uint32_t block_tokens, uint64_t found,
                        const HasOpen& has_open, const Accepts& accepts) {
  const uint64_t most = std::min(ReusableBlocks(prompt_tokens, block_tokens), found);
  bool all_accepted = true;  // of the split so far
  for (uint64_t block = 0; block < most; ++block) {
    if (block * block_tokens % kSplitTokens == 0) all_accepted = true;
    all_accepted = all_accepted && accepts(block);
    if (!has_open(block) && !all_accepted) return block;
  }
  return most;
}
/// Cuts the path to the blocks that can be used according to its slots.
void CutToHit(const SlotClasses& classes, uint64_t prompt_tokens, FoundPath& path);
/// The slots of block i that a query after the path needs. Nothing: the block is not as it was
/// found, or may not be handed out.
std::optional<PerClass<SlotId>> NeededOf(const State& state, const FoundPath& path, uint64_t i);
/// Leases blocks [begin, end) of a path that was found, and holds the slots that a query after it
/// needs: these are the path's slots from then on, also if its blocks have moved since. `leased` is
/// the block before them that has a lease until now, or none. False: not all is as it was found.
/// Slots that were held are appended in any case.
bool LeaseSome(State& state, FoundPath& path, uint64_t begin, uint64_t end, BlockId& leased,
               std::vector<SlotId>& held);

/// The ghosts with these keys, each the child of the one before. False: the last of them is not
/// remembered.
bool FindGhosts(State& state, const PublishLocation& location, std::span<const Digest> keys,
                std::vector<Ghost>& found);

/// Divides the prompt after the hit into runs with one reason each.
std::vector<MissRun> MissesOf(std::span<const TokenId> prompt, uint32_t block_tokens,
                              const FoundPath& path, std::span<const Ghost> ghosts);

/// Runs these over a whole prompt, and looks up the rest in the store.
///
/// Threads: any
class Search {
 public:
  explicit Search(LockedState& cache) : cache_(cache) {}

  /// The blocks of a prompt in memory, and whether there are more under another root.
  FoundPath FindPath(std::span<const TokenId> prompt, const PublishLocation& location);
  /// The blocks of these tokens in memory. `explains`: also looks for missing blocks under another
  /// root.
  FoundPath FindBlocks(std::span<const TokenId> tokens, const PublishLocation& location,
                       bool explains);
  /// The blocks of a prompt that the store has besides a path that was found. Needs a store.
  void FindBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                 const FoundPath& path, LoadList& load) const;
  /// How many blocks of a prompt the account has in the store under another root. Needs a store.
  uint64_t FindElsewhereBelow(std::span<const TokenId> prompt,
                              const PublishLocation& location) const;
  /// The ghosts of the blocks after the one with `key`, up to the first that is not remembered.
  std::vector<Ghost> FindGhosts(std::span<const TokenId> tokens, Digest key,
                                const PublishLocation& location);
  /// Holds the slots that a query after a found path needs; they are the path's slots afterwards.
  /// False: a block left since it was found, and nothing is held.
  bool LeasePath(FoundPath& path, std::vector<SlotId>& held);

 private:
  std::vector<Digest> KeysBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                                const FoundPath& path, std::vector<LoadList::Run>& runs) const;

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_LOOKUP_H_

#include "cache/lookup.h"

#include <algorithm>

#include "cache/hit_length.h"

namespace quire::cache {
namespace {

// Joins what has the same reason.
void AddRun(std::vector<MissRun>& runs, MissReason reason, uint64_t tokens, uint64_t gone_us) {
  if (tokens == 0) return;
  if (!runs.empty() && runs.back().reason == reason) {
    runs.back().tokens += tokens;
    return;
  }
  runs.push_back({.reason = reason, .tokens = tokens, .gone_us = gone_us});
}

MissReason ReasonOf(Standing standing) {
  switch (standing) {
    case Standing::kDamaged: return MissReason::kDamaged;
    case Standing::kErased: return MissReason::kNeverSeen;  // as if it had never been
    case Standing::kGood:
    case Standing::kPassed: break;
  }
  return MissReason::kWindowPassed;
}

}  // namespace

FoundPath FindPath(const State& state, std::span<const TokenId> prompt, const Place& place) {
  const SlotClasses& classes = state.classes;
  const Directory& directory = state.directory;
  const uint64_t reusable = ReusableBlocks(prompt.size(), classes.block_tokens());
  const auto tokens = prompt.first(reusable * classes.block_tokens());
  FoundPath path{.last_key = place.root_key};
  directory.Find(place.root_key, tokens, path.blocks);
  const uint64_t found = path.blocks.size();
  if (found > 0) path.last_key = directory.at(path.blocks.back()).key;

  uint64_t good = 0;
  while (good < found && directory.at(path.blocks[good]).is_good()) ++good;
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return !directory.at(path.blocks[block]).slots[slot_class].is_none();
  };
  const uint64_t sealed = HitBlocks(prompt.size(), classes.block_tokens(), good,
                                    classes.reaches().first(classes.part_count()), has);
  const uint64_t hit =
      classes.residual_blocks() == 0
          ? sealed
          : HitBlocks(prompt.size(), classes.block_tokens(), sealed, classes.reaches(), has);
  for (uint64_t i = hit; i < found; ++i) {
    path.beyond.push_back(i < sealed ? MissReason::kNoTwin
                                     : ReasonOf(directory.at(path.blocks[i]).standing));
  }
  path.blocks.resize(hit);
  if (found < reusable) {
    path.elsewhere =
        directory.FindElsewhere(state.account_of(place), place.root_key, *place.domain, tokens);
  }
  return path;
}

bool FindGhosts(State& state, const Place& place, std::span<const Digest> keys,
                std::vector<Ghost>& found) {
  const Ghosts& ghosts = state.directory.ghosts(state.account_of(place));
  for (const Digest& key : keys) {
    const auto ghost = ghosts.Find(key);
    // In a domain the others must not hear of what its publisher has erased since.
    if (!ghost || ghost->epoch != state.accounts.epoch(ghost->publisher)) return false;
    found.push_back(*ghost);
  }
  return true;
}

// A block is looked for among those in the index, then among those that went, then under the
// tenant's other identities.
std::vector<MissRun> MissesOf(std::span<const TokenId> prompt, uint32_t block_tokens,
                              const FoundPath& path, std::span<const Ghost> ghosts) {
  std::vector<MissRun> runs;
  const uint64_t reusable = ReusableBlocks(prompt.size(), block_tokens);
  uint64_t block = path.blocks.size();
  for (const MissReason reason : path.beyond) {
    AddRun(runs, reason, block_tokens, 0);
    ++block;
  }
  for (const Ghost& ghost : ghosts) {
    AddRun(runs, ghost.reason, block_tokens, ghost.gone_us);
    ++block;
  }
  for (; block < std::min(path.elsewhere, reusable); ++block) {
    AddRun(runs, MissReason::kOtherProfile, block_tokens, 0);
  }
  AddRun(runs, MissReason::kNeverSeen, (reusable - block) * block_tokens, 0);
  AddRun(runs, MissReason::kPartialBlock, prompt.size() - reusable * block_tokens, 0);
  return runs;
}

}  // namespace quire::cache

// Why what was asked for is not here.
#include <algorithm>

#include "cache/core.h"
#include "cache/hit_length.h"

namespace quire::cache {

namespace {

constexpr uint64_t kKeysPerHold = 64;

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

// Divides the prompt after the hit into runs. A block is looked for among those in the index, then
// among those that went, then under the tenant's other identities.
void Core::Explain(std::span<const TokenId> prompt, const Path& path, PlanState& state) {
  const uint64_t reusable = ReusableBlocks(prompt.size(), block_tokens());
  uint64_t block = path.blocks.size();
  for (const MissReason reason : path.beyond) {
    AddRun(state.missing, reason, block_tokens(), 0);
    ++block;
  }
  const auto rest = prompt.subspan(block * block_tokens());
  for (const Ghost& ghost :
       FindGhosts(rest.first((reusable - block) * block_tokens()), path.last_key, state.place)) {
    AddRun(state.missing, ghost.reason, block_tokens(), ghost.gone_us);
    ++block;
  }
  for (; block < std::min(path.elsewhere, reusable); ++block) {
    AddRun(state.missing, MissReason::kOtherProfile, block_tokens(), 0);
  }
  AddRun(state.missing, MissReason::kNeverSeen, (reusable - block) * block_tokens(), 0);
  AddRun(state.missing, MissReason::kPartialBlock, prompt.size() - reusable * block_tokens(), 0);
}

// What is remembered of the blocks after the one with `key`, up to the first that is not: what
// continued that one went earlier and is forgotten too. The keys are hashed without the lock.
std::vector<Ghost> Core::FindGhosts(std::span<const TokenId> tokens, Digest key,
                                    const Place& place) {
  std::vector<Ghost> found;
  std::vector<Digest> keys;
  uint64_t wanted = 1;  // most prompts end the search with their first block
  while (tokens.size() >= block_tokens()) {
    const bool any =
        mutex_.Run([&]() QUIRE_REQUIRES(mutex_) { return !AccountOf(place).ghosts.empty(); });
    if (!any) return found;
    keys.clear();
    for (; keys.size() < wanted && tokens.size() >= block_tokens();
         tokens = tokens.subspan(block_tokens())) {
      key = ChildKey(*place.domain, key, tokens.data(), block_tokens());
      keys.push_back(key);
    }
    wanted = kKeysPerHold;
    const bool all = mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
      const Ghosts& ghosts = AccountOf(place).ghosts;
      for (const Digest& one : keys) {
        const auto ghost = ghosts.Find(one);
        // In a domain the others must not hear of what its publisher has erased since.
        if (!ghost || ghost->epoch != TenantOf(ghost->publisher).epoch) return false;
        found.push_back(*ghost);
      }
      return true;
    });
    if (!all) return found;
  }
  return found;
}

Core::Path Core::FindPath(std::span<const TokenId> prompt, const Place& place) {
  const uint64_t reusable = ReusableBlocks(prompt.size(), block_tokens());
  const auto tokens = prompt.first(reusable * block_tokens());
  Path path{.last_key = place.root_key};
  const auto root = index_.FindRoot(place.root_key);
  if (root) index_.Find(*root, tokens, path.blocks);
  const uint64_t found = path.blocks.size();
  if (found > 0) path.last_key = blocks_.at(path.blocks.back()).key;

  uint64_t good = 0;
  while (good < found && blocks_.at(path.blocks[good]).standing == Standing::kGood) ++good;
  BlockTable* const blocks = &blocks_;  // HitBlocks calls back while the lock is held
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return !blocks->at(path.blocks[block]).slots[slot_class].is_none();
  };
  const uint64_t sealed =
      HitBlocks(prompt.size(), block_tokens(), good, reaches().first(layout_.part_count()), has);
  const uint64_t hit = residual_blocks() == 0
                           ? sealed
                           : HitBlocks(prompt.size(), block_tokens(), sealed, reaches(), has);
  for (uint64_t i = hit; i < found; ++i) {
    path.beyond.push_back(i < sealed ? MissReason::kNoTwin
                                     : ReasonOf(blocks_.at(path.blocks[i]).standing));
  }
  path.blocks.resize(hit);
  if (found == reusable) return path;

  std::vector<BlockId> other;
  for (const index::RootId candidate : AccountOf(place).roots) {
    // Of another domain of the same tenant nothing is said either.
    if ((root && candidate == *root) || *roots_[candidate.number()].domain != *place.domain) {
      continue;
    }
    other.clear();
    index_.Find(candidate, tokens, other);
    const auto erased = std::ranges::find_if(other, [&](BlockId block) QUIRE_REQUIRES(mutex_) {
      return blocks_.at(block).standing == Standing::kErased;
    });
    path.elsewhere = std::max<uint64_t>(path.elsewhere, erased - other.begin());
  }
  return path;
}

}  // namespace quire::cache

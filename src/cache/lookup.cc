#include "cache/lookup.h"

#include <algorithm>

#include "cache/below.h"
#include "cache/hit_length.h"
#include "cache/leases.h"

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

MissReason ReasonOf(BlockState block_state) {
  switch (block_state) {
    case BlockState::kDamaged: return MissReason::kDamaged;
    case BlockState::kErased: return MissReason::kNeverSeen;  // as if it had never been
    case BlockState::kGood:
    case BlockState::kPassed: break;
  }
  return MissReason::kWindowPassed;
}

}  // namespace

bool FindMore(const State& state, std::span<const TokenId> tokens, const PublishLocation& location,
              FoundPath& path) {
  const SlotClasses& classes = state.classes;
  const Directory& directory = state.directory;
  const uint64_t before = path.blocks.size();
  // Where some bytes of a block may be there and others not, a load asks for known blocks too.
  const bool in_pieces = classes.count() > 1 || classes.reach(0).windowed();
  if (before == 0) path.last_key = location.root_key;
  const BlockId last = before == 0 ? BlockId::None() : path.blocks.back();
  // Where it went meanwhile, so did all that continues it.
  const bool is_there = last.is_none() || (directory.contains(last) &&
                                           PolicyKey(directory.at(last).key) == path.keys.back());
  const auto rest = tokens.subspan(before * classes.block_tokens());
  const uint64_t piece =
      std::min<uint64_t>(rest.size(), uint64_t{kBlocksPerHold} * classes.block_tokens());
  if (is_there) directory.Find(location.root_key, last, rest.first(piece), path.blocks);
  for (uint64_t i = before; i < path.blocks.size(); ++i) {
    const BlockRecord& record = directory.at(path.blocks[i]);
    path.keys.push_back(PolicyKey(record.key));
    if (state.has_store && in_pieces) path.digests.push_back(record.key);
    for (uint32_t c = 0; c < classes.count(); ++c) path.slots[c].push_back(record.slots[c]);
    const BlockState block_state = BlockStateOf(state, path.blocks[i]);
    if (path.bad.empty() && block_state == BlockState::kGood) {
      ++path.good;
    } else {
      path.bad.push_back(block_state);
    }
    path.last_key = record.key;
  }
  const uint64_t found = path.blocks.size() - before;
  if (found * classes.block_tokens() == piece) return piece < rest.size();
  path.elsewhere = directory.FindElsewhere(state.account_of(location), location.root_key,
                                           *location.domain, tokens);
  return false;
}

void CutToHit(const SlotClasses& classes, uint64_t prompt_tokens, FoundPath& path) {
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return !path.slots[slot_class][block].is_none();
  };
  const auto [hit, sealed] = UsableBlocks(classes, prompt_tokens, path.good, has);
  for (uint64_t i = hit; i < path.blocks.size(); ++i) {
    const BlockState block_state = i < path.good ? BlockState::kGood : path.bad[i - path.good];
    path.beyond.push_back(i < sealed ? MissReason::kNoTwin : ReasonOf(block_state));
  }
  path.blocks.resize(hit);
}

bool LeaseSome(State& state, const FoundPath& path, uint64_t begin, uint64_t end, BlockId& leased,
               std::vector<SlotId>& held) {
  const SlotClasses& classes = state.classes;
  const uint64_t tokens = path.blocks.size() * classes.block_tokens();
  for (uint64_t i = begin; i < end; ++i) {
    const BlockId block = path.blocks[i];
    if (!state.directory.contains(block)) return false;
    const BlockRecord& record = state.directory.at(block);
    if (PolicyKey(record.key) != path.keys[i]) return false;
    if (BlockStateOf(state, block) != BlockState::kGood) return false;
    PerClass<SlotId> needed{};
    bool is_held = false;
    for (uint32_t c = 0; c < classes.count(); ++c) {
      if (!classes.IsNeeded(c, i, tokens)) continue;
      if (record.slots[c].is_none()) return false;
      needed[c] = record.slots[c];
      is_held = true;
    }
    // Where no slot of it is held the block itself is leased, until the next one is: so no hold has
    // to go back further than it did itself.
    if (!is_held) AddLease(state, block);
    Offer(state, block);  // if the store never got it
    NoteUsed(state, block);
    for (const SlotId slot : needed) {
      if (slot.is_none()) continue;
      HoldSlot(state, slot);
      held.push_back(slot);
    }
    if (!leased.is_none()) DropLease(state, leased);
    leased = is_held ? BlockId::None() : block;
  }
  return true;
}

bool FindGhosts(State& state, const PublishLocation& location, std::span<const Digest> keys,
                std::vector<Ghost>& found) {
  const Ghosts& ghosts = state.directory.ghosts(state.account_of(location));
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

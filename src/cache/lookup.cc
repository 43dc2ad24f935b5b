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
    } else {  // what continues a bad one is about to be marked so
      path.bad.push_back(block_state == BlockState::kGood ? path.bad.back() : block_state);
    }
    path.last_key = record.key;
  }
  const uint64_t found = path.blocks.size() - before;
  return found * classes.block_tokens() == piece && piece < rest.size();
}

bool FindElsewhere(const State& state, std::span<const TokenId> tokens,
                   const PublishLocation& location, SearchElsewhere& search, FoundPath& path) {
  const Directory& directory = state.directory;
  const TenantId account = state.account_of(location);
  const uint32_t block_tokens = state.classes.block_tokens();
  const uint64_t blocks = tokens.size() / block_tokens;
  std::vector<BlockId> found;
  // A root costs as much as a block.
  uint64_t left = kRecordsPerHold / 2;
  while (search.root < directory.root_count(account)) {
    if (left <= 1) return true;
    --left;
    const Directory::Root& root = directory.root(account, search.root);
    if (search.root_key != root.key) search = {.root = search.root, .root_key = root.key};
    const auto next_root = [&] { search = {.root = search.root + 1}; };
    // Of another domain of the same tenant nothing is said either.
    if (root.key == location.root_key || *root.domain != *location.domain) {
      next_root();
      continue;
    }
    const BlockId last = search.last;
    const bool is_there = last.is_none() || (directory.contains(last) &&
                                             PolicyKey(directory.at(last).key) == search.last_key);
    const uint64_t piece = std::min(blocks - search.blocks, left);
    const auto rest = tokens.subspan(search.blocks * block_tokens, piece * block_tokens);
    found.clear();
    if (is_there) directory.Find(root.key, last, rest, found);
    const auto erased = std::ranges::find(
        found, BlockState::kErased, [&](BlockId block) { return BlockStateOf(state, block); });
    const auto count = static_cast<uint64_t>(erased - found.begin());
    left -= count;
    search.blocks += count;
    path.elsewhere = std::max(path.elsewhere, search.blocks);
    if (search.blocks == blocks) return false;  // none is longer
    if (count < piece) {
      next_root();
      continue;
    }
    search.last = found.back();
    search.last_key = PolicyKey(directory.at(search.last).key);
  }
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

std::optional<PerClass<SlotId>> NeededOf(const State& state, const FoundPath& path, uint64_t i) {
  const SlotClasses& classes = state.classes;
  const uint64_t tokens = path.blocks.size() * classes.block_tokens();
  const BlockId block = path.blocks[i];
  if (!state.directory.contains(block)) return std::nullopt;
  const BlockRecord& record = state.directory.at(block);
  if (PolicyKey(record.key) != path.keys[i]) return std::nullopt;
  if (BlockStateOf(state, block) != BlockState::kGood) return std::nullopt;
  PerClass<SlotId> needed{};
  for (uint32_t c = 0; c < classes.count(); ++c) {
    if (!classes.IsNeeded(c, i, tokens)) continue;
    if (record.slots[c].is_none()) return std::nullopt;
    needed[c] = record.slots[c];
  }
  return needed;
}

bool LeaseSome(State& state, const FoundPath& path, uint64_t begin, uint64_t end, BlockId& leased,
               std::vector<SlotId>& held) {
  for (uint64_t i = begin; i < end; ++i) {
    const BlockId block = path.blocks[i];
    const auto needed = NeededOf(state, path, i);
    if (!needed) return false;
    const bool is_held = std::ranges::any_of(*needed, [](SlotId slot) { return !slot.is_none(); });
    // Where no slot of it is held the block itself is leased, until the next one is: so no hold has
    // to go back further than it did itself.
    if (!is_held) AddLease(state, block);
    Offer(state, block);  // if the store never got it
    NoteUsed(state, block);
    for (const SlotId slot : *needed) {
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

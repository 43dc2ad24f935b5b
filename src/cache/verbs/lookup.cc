#include "cache/verbs/lookup.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "base/sync_point.h"
#include "cache/below/write_back.h"
#include "cache/verbs/hit_length.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/tenants.h"
#include "transfer/transfers.h"

namespace quire::cache {
namespace {

// Joins runs with the same reason.
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
    case BlockState::kErased: return MissReason::kNeverSeen;  // as if it had never been published
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
  // Where some bytes of a block may be present and others not, a load also asks for known blocks.
  const bool in_pieces = classes.count() > 1 || classes.reach(0).windowed();
  if (before == 0) path.last_key = location.root_key;
  const BlockId last = before == 0 ? BlockId::None() : path.blocks.back();
  // If the last block was evicted meanwhile, so were all its descendants.
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
    if (classes.has_ladder()) path.errors.push_back(record.error.largest());
    for (uint32_t c = 0; c < classes.count(); ++c) path.slots[c].push_back(record.slots[c]);
    const BlockState block_state = BlockStateOf(state, path.blocks[i]);
    if (path.bad.empty() && block_state == BlockState::kGood) {
      ++path.good;
    } else {  // the descendants of a bad block are about to be marked
      path.bad.push_back(block_state == BlockState::kGood ? path.bad.back() : block_state);
    }
    path.last_key = record.key;
  }
  const uint64_t found = path.blocks.size() - before;
  return found * classes.block_tokens() == piece && piece < rest.size();
}

namespace {

// For a path whose last block was found. It only explains a miss.
void FindDifference(const State& state, std::span<const TokenId> tokens,
                    const PublishLocation& location, FoundPath& path) {
  const BlockId last = path.blocks.empty() ? BlockId::None() : path.blocks.back();
  const bool is_there =
      last.is_none() || (state.directory.contains(last) &&
                         PolicyKey(state.directory.at(last).key) == path.keys.back());
  if (!is_there) return;
  const uint32_t block_tokens = state.classes.block_tokens();
  const uint64_t found = path.blocks.size() * uint64_t{block_tokens};
  const auto common =
      state.directory.CommonTokens(location.root_key, last, tokens.subspan(found, block_tokens));
  if (common) path.differs_at = found + *common;
}

}  // namespace

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
    // Nothing is revealed of another domain of the same tenant.
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
    if (search.blocks == blocks) return false;  // no longer path
    if (count < piece) {
      next_root();
      continue;
    }
    search.last = found.back();
    search.last_key = PolicyKey(directory.at(search.last).key);
  }
  return false;
}

namespace {

// Of the first `found` blocks of a path, of which [known, found) are in the store alone.
std::pair<uint64_t, uint64_t> UsableForms(const SlotClasses& classes, uint64_t prompt_tokens,
                                          const FoundPath& path, uint64_t known, uint64_t found) {
  const uint32_t open_class = classes.OpenClassOf(0);
  const auto has_open = [&](uint64_t block) {
    return block < known && !path.slots[open_class][block].is_none();
  };
  // The error of what is loaded is known once it has come.
  const auto accepts = [&](uint64_t block) {
    if (Planted(Canary::kAcceptDemoted)) return true;
    return path.error_max > 0 && (block >= known || path.errors[block] <= path.error_max);
  };
  return {UsableOfLadder(prompt_tokens, classes.block_tokens(), found, has_open, accepts),
          std::min(ReusableBlocks(prompt_tokens, classes.block_tokens()), found)};
}

}  // namespace

void CutToHit(const SlotClasses& classes, uint64_t prompt_tokens, FoundPath& path) {
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return !path.slots[slot_class][block].is_none();
  };
  const auto [hit, sealed] = classes.has_ladder()
                                 ? UsableForms(classes, prompt_tokens, path, path.good, path.good)
                                 : UsableBlocks(classes, prompt_tokens, path.good, has);
  const MissReason unusable = classes.has_ladder() ? MissReason::kApproximate : MissReason::kNoTwin;
  for (uint64_t i = hit; i < path.blocks.size(); ++i) {
    const BlockState block_state = i < path.good ? BlockState::kGood : path.bad[i - path.good];
    path.beyond.push_back(i < sealed ? unusable : ReasonOf(block_state));
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
    const bool accepts = path.error_max > 0 || Planted(Canary::kAcceptDemoted);
    const bool may_lack = classes.has_ladder() && !classes.is_sealed(c) && accepts;
    if (record.slots[c].is_none() && !may_lack) return std::nullopt;
    needed[c] = record.slots[c];
  }
  return needed;
}

bool LeaseSome(State& state, FoundPath& path, uint64_t begin, uint64_t end, BlockId& leased,
               std::vector<SlotId>& held) {
  for (uint64_t i = begin; i < end; ++i) {
    const BlockId block = path.blocks[i];
    const auto needed = NeededOf(state, path, i);
    if (!needed) return false;
    const bool is_held = std::ranges::any_of(*needed, [](SlotId slot) { return !slot.is_none(); });
    // A block without held slots is leased itself until the next block is, so that no hold has to
    // walk further back than its own blocks.
    if (!is_held) AddLease(state, block);
    Offer(state, block);  // if the store does not have it
    NoteUsed(state, block);
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      const SlotId slot = (*needed)[c];
      if (state.classes.has_ladder()) path.errors[i] = state.directory.at(block).error.largest();
      // Since it was found the block may have moved, lost its open form, or gone and come back in
      // another slot.
      path.slots[c][i] = slot;
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
  const Ghosts& ghosts = state.accounts.ghosts(state.account_of(location));
  for (const Digest& key : keys) {
    const auto ghost = ghosts.Find(key);
    // In a domain other members must not learn what the publisher has erased since.
    if (!ghost || state.IsStale(ghost->publisher, ghost->epoch)) return false;
    found.push_back(*ghost);
  }
  return true;
}

// Looks for a block in the index, then among the ghosts, then under the tenant's other identities.
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

FoundPath Search::FindPath(std::span<const TokenId> prompt, const PublishLocation& location) {
  return FindBlocks(
      prompt.first(ReusableBlocks(prompt.size(), cache_.block_tokens()) * cache_.block_tokens()),
      location,
      /*explains=*/true);
}

// `explains`: also looks for missing blocks under other roots.
FoundPath Search::FindBlocks(std::span<const TokenId> tokens, const PublishLocation& location,
                             bool explains) {
  FoundPath path;
  SearchElsewhere search;
  const auto look_elsewhere = [&](State& state) {
    return FindElsewhere(state, tokens, location, search, path);
  };
  // Most searches are short enough for one hold.
  bool elsewhere = false;
  while (cache_.With([&](State& state) {
    if (FindMore(state, tokens, location, path)) return true;
    const bool all = path.blocks.size() * cache_.block_tokens() == tokens.size();
    if (!explains || all) return false;
    FindDifference(state, tokens, location, path);
    elsewhere = look_elsewhere(state);
    return false;
  })) {
  }
  while (elsewhere) {
    AtSyncPoint("acquire: before other roots are searched");
    elsewhere = cache_.With(look_elsewhere);
  }
  return path;
}

// False: a block left since it was found, and nothing is held.
bool Search::LeasePath(FoundPath& path, std::vector<SlotId>& held) {
  BlockId leased;  // a block of the path that this call leases
  bool all = true;
  LockedState::ForPieces(path.blocks.size(), [&](size_t begin, size_t end) {
    if (!all) return;
    AtSyncPoint("acquire: before blocks are leased");
    cache_.With([&](State& state) { all = LeaseSome(state, path, begin, end, leased, held); });
  });
  if (!leased.is_none()) cache_.With([&](State& state) { DropLease(state, leased); });
  if (all && cache_.classes().has_ladder()) {  // open forms may have gone since
    const uint64_t found = path.blocks.size();
    const uint64_t tokens = found * cache_.block_tokens() + 1;
    all = UsableForms(cache_.classes(), tokens, path, found, found).first == found;
  }
  if (all) return true;
  cache_.ReleaseSlots(held);
  held.clear();
  return false;
}

// The ghosts of the blocks after the one with `key`, up to the first that is not remembered: its
// descendants went earlier and are forgotten too. The keys are hashed without the lock.
std::vector<Ghost> Search::FindGhosts(std::span<const TokenId> tokens, Digest key,
                                      const PublishLocation& location) {
  constexpr uint64_t kKeysPerHold = 64;
  std::vector<Ghost> found;
  std::vector<Digest> keys;
  uint64_t wanted = 1;  // most prompts end the search with their first block
  while (tokens.size() >= cache_.block_tokens()) {
    const bool any = cache_.With(
        [&](State& state) { return !state.accounts.ghosts(state.account_of(location)).empty(); });
    if (!any) return found;
    keys.clear();
    for (; keys.size() < wanted && tokens.size() >= cache_.block_tokens();
         tokens = tokens.subspan(cache_.block_tokens())) {
      key = ChildKey(*location.domain, key, tokens.data(), cache_.block_tokens());
      keys.push_back(key);
    }
    wanted = kKeysPerHold;
    const bool all =
        cache_.With([&](State& state) { return cache::FindGhosts(state, location, keys, found); });
    if (!all) return found;
  }
  return found;
}

// The keys of blocks that are not in memory, as long as the store has them, each by itself or in a
// run: hashed on from the last block in the tree.
std::vector<Digest> Search::KeysBelow(std::span<const TokenId> prompt,
                                      const PublishLocation& location, const FoundPath& path,
                                      std::vector<LoadList::Run>& runs) const {
  constexpr uint64_t kKeysAtOnce = 32;
  const uint32_t block_tokens = cache_.block_tokens();
  const uint64_t run_blocks = cache_.shapes().run_blocks();
  const uint64_t known = path.blocks.size();
  const uint64_t reusable = ReusableBlocks(prompt.size(), block_tokens);
  std::vector<Digest> beyond;
  const auto hash_to = [&](uint64_t blocks) {
    while (known + beyond.size() < blocks) {
      const TokenId* const tokens = &prompt[(known + beyond.size()) * block_tokens];
      const Digest& parent = beyond.empty() ? path.last_key : beyond.back();
      beyond.push_back(ChildKey(*location.domain, parent, tokens, block_tokens));
    }
  };
  // The end of the run that has this block, if the store has one: it may end with the prompt.
  uint64_t asked = 0;  // for runs that end here or earlier
  const auto find_run = [&](uint64_t block) -> std::optional<uint64_t> {
    const uint64_t end = RoundDown(block, run_blocks) + run_blocks;
    if (run_blocks == 1 || end <= asked || end * block_tokens > prompt.size()) return std::nullopt;
    asked = end;
    hash_to(end);
    const LoadList::Run run{.first = end - run_blocks, .key = RunKey(beyond[end - 1 - known])};
    if (cache_.transfers()->PresenceOf(run.key) != tier::Presence::kPresent) return std::nullopt;
    runs.push_back(run);
    return std::min(end, reusable);
  };
  std::vector<tier::Presence> present;
  // Of what was asked for, blocks that are there, or may be at a remote peer; then, if it is one,
  // those of the run at which that ended.
  const auto take = [&](uint64_t begin) {
    const bool trusts = Planted(Canary::kTrustChildren);
    const auto last = std::find(present.rbegin(), present.rend(), tier::Presence::kPresent).base();
    for (auto each = present.begin(); each != present.end(); ++each, ++begin) {
      if (*each == tier::Presence::kPresent || (trusts && each < last)) continue;
      if (const auto end = find_run(begin)) return std::pair(*end, false);
      if (*each == tier::Presence::kAbsent) return std::pair(begin, true);
    }
    return std::pair(begin, false);
  };
  uint64_t found = known;
  bool is_end = false;
  for (uint64_t wanted = 1; found < reusable && !is_end; wanted = kKeysAtOnce) {
    const uint64_t count = std::min(wanted, reusable - found);
    hash_to(found + count);
    present.assign(count, tier::Presence::kAbsent);
    cache_.transfers()->Find(std::span(beyond).subspan(found - known, count), present);
    std::tie(found, is_end) = take(found);
  }
  beyond.resize(found - known);
  return beyond;
}

// Computes the hit as if all blocks of the store were here.
void Search::FindBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                       const FoundPath& path, LoadList& load) const {
  if (!path.bad.empty()) return;  // a bad block stops the hit
  const SlotClasses& classes = cache_.classes();
  const uint64_t known = path.blocks.size();
  const uint64_t reusable = ReusableBlocks(prompt.size(), cache_.block_tokens());
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return block < known && !path.slots[slot_class][block].is_none();
  };
  const bool has_ladder = classes.has_ladder();
  const uint64_t resident = has_ladder
                                ? UsableForms(classes, prompt.size(), path, known, known).first
                                : UsableBlocks(classes, prompt.size(), known, has).first;
  if (resident == reusable) return;

  // Of blocks [known, ...).
  const std::vector<Digest> beyond = KeysBelow(prompt, location, path, load.runs);
  const auto key_of = [&](uint64_t block) -> const Digest& {
    return block < known ? path.digests[block] : beyond[block - known];
  };
  const auto store_has = [&](const Digest& wanted) {
    return cache_.transfers()->PresenceOf(wanted) != tier::Presence::kAbsent;
  };
  // A block in the tree whose bytes have left memory may be in a run alone.
  const auto is_in_run = [&](uint64_t block) {
    const uint64_t run_blocks = cache_.shapes().run_blocks();
    const LoadList::Run run{.first = RoundDown(block, run_blocks)};
    const uint64_t end = run.first + run_blocks;
    const uint32_t block_tokens = cache_.block_tokens();
    if (run_blocks == 1 || end * block_tokens > prompt.size()) return false;
    const auto at = std::ranges::lower_bound(load.runs, run.first, {}, &LoadList::Run::first);
    if (at != load.runs.end() && at->first == run.first) return true;
    const uint64_t hashed = std::min(end, known + beyond.size());
    Digest key = key_of(hashed - 1);
    for (uint64_t i = hashed; i < end; ++i) {
      key = ChildKey(*location.domain, key, &prompt[i * block_tokens], block_tokens);
    }
    key = RunKey(key);
    if (cache_.transfers()->PresenceOf(key) != tier::Presence::kPresent) return false;
    load.runs.insert(at, {.first = run.first, .key = key});
    return true;
  };
  // Each block is looked up once, however often the computation of the hit asks for it.
  enum class Known : uint8_t { kNo, kAbsent, kPresent };
  std::vector<Known> sealed_below(known, Known::kNo);
  std::vector<Known> twins_below(known + beyond.size(), Known::kNo);
  const auto below = [&](uint32_t slot_class, uint64_t block) {
    const bool is_sealed = classes.is_sealed(slot_class);
    if (is_sealed && block >= known) return true;
    Known& memo = is_sealed ? sealed_below[block] : twins_below[block];
    if (memo == Known::kNo) {
      const bool found = store_has(is_sealed ? key_of(block) : TwinKey(key_of(block)));
      const bool is_there = found || (is_sealed && is_in_run(block));
      memo = is_there ? Known::kPresent : Known::kAbsent;
    }
    return memo == Known::kPresent;
  };
  const auto could_have = [&](uint32_t slot_class, uint64_t block) {
    return has(slot_class, block) || below(slot_class, block);
  };
  const uint64_t found = known + beyond.size();
  const uint64_t hit = has_ladder ? UsableForms(classes, prompt.size(), path, known, found).first
                                  : UsableBlocks(classes, prompt.size(), found, could_have).first;
  if (hit <= resident) {
    if (has_ladder && path.error_max == 0) {
      load.refused_blocks = found;
      load.keys = beyond;
    }
    return;
  }

  load.blocks = hit;
  load.tokens = (hit - resident) * cache_.block_tokens();
  load.parent_key = resident == 0                                   ? location.root_key
                    : resident - 1 < known && !path.digests.empty() ? path.digests[resident - 1]
                                                                    : path.last_key;
  for (uint64_t i = resident; i < hit; ++i) {
    PerClass<bool>& wanted = load.wanted.emplace_back();
    load.keys.push_back(key_of(i));
    if (cache_.transfers()->PresenceOf(key_of(i)) == tier::Presence::kUnknown) {
      load.uncertain_tokens += cache_.block_tokens();
    }
    bool any_needed = false;
    for (uint32_t c = 0; c < classes.count(); ++c) {
      if (!classes.IsNeeded(c, i, hit * cache_.block_tokens())) continue;
      any_needed = any_needed || classes.is_sealed(c);
      wanted[c] = !has(c, i) && (classes.is_sealed(c) || !has_ladder);
    }
    // Where every layer has a window, later blocks are found through the bytes of this one.
    for (uint32_t group = 0; group < classes.group_count() && !any_needed && i >= known; ++group) {
      wanted[group] = true;
    }
    for (uint32_t c = 0; c < classes.count(); ++c) {
      if (wanted[c]) load.bytes += classes.slot_bytes(c);
    }
  }
}

// How many blocks of a prompt the account has in the store under another root: of other weights, or
// of another profile. Roots of other domains do not match, because keys are hashed with the secret.
uint64_t Search::FindElsewhereBelow(std::span<const TokenId> prompt,
                                    const PublishLocation& location) const {
  const auto publisher = PublisherOf(cache_, location.tenant);
  for (const tier::RecordRoot& root : cache_.transfers()->RootsOf(publisher)) {
    if (root.key == location.root_key || root.block_tokens == 0) continue;
    Digest key = root.key;
    uint64_t tokens = 0;
    while (prompt.size() - tokens >= root.block_tokens) {
      key = ChildKey(*location.domain, key, &prompt[tokens], root.block_tokens);
      // What a remote might have is not known to be there.
      if (cache_.transfers()->PresenceOf(key) != tier::Presence::kPresent) break;
      tokens += root.block_tokens;
    }
    if (tokens > 0)
      return DivUp(tokens, uint64_t{cache_.block_tokens()});  // the other roots would cost as much
  }
  return 0;
}

}  // namespace quire::cache

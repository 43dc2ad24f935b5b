#include "cache/verbs/publish.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>

#include "base/log.h"
#include "base/sync_point.h"
#include "cache/below/write_back.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/quarantine.h"
#include "transfer/transfers.h"

namespace quire::cache {
namespace {

// Blocks from before an erasure are not published again.
BlockState BlockStateBefore(const State& state, const PublishLocation& location,
                            const NewBlock& block) {
  if (state.IsStale(location)) return BlockState::kErased;
  return block.parent.is_none() ? BlockState::kGood : BlockStateOf(state, block.parent);
}

// The caller's slot, which others may hold too, becomes the slot of a published block.
void AddPublishedSlot(State& state, BlockId block, SlotId slot, uint32_t crc) {
  state.directory.ReserveSlot(slot);
  state.directory.AddSlot(block, slot, crc);
  AddLease(state, block, state.slots.references(slot));
  state.slots.Retain(slot);
  state.accounts.charges().MoveSlot(slot, state.directory.at(block).account);
  List(state, block);
}

// The block is known. The caller gets references on its present slots; slots that a window released
// are replaced by the caller's.
Published Join(State& state, BlockId same, const NewBlock& block, const PerClass<uint32_t>& crcs) {
  if (BlockStateOf(state, same) != BlockState::kGood) return {};
  Published published{.block = same};
  bool deduplicated = false;
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    const SlotId own = block.slots[group];
    if (const SlotId there = state.directory.at(same).slots[group]; !there.is_none()) {
      // A fork, or the load that it began with, may have published the slot that both hold.
      if (there != own) HoldSlot(state, there);
      published.slots[group] = there;
      deduplicated = deduplicated || (!own.is_none() && there != own);
      continue;
    }
    if (own.is_none()) continue;
    AddPublishedSlot(state, same, own, crcs[group]);
    published.slots[group] = own;
  }
  if (deduplicated) ++state.counters.deduplicated_total;
  return published;
}

// The mean of all that was published so far, but for values that are not finite.
void CountError(State& state, const FormError& error) {
  if (!state.classes.has_ladder() || !std::isfinite(error.largest())) return;
  const auto count = static_cast<double>(state.counters.published_total);
  state.counters.key_error_mean += (error.key - state.counters.key_error_mean) / count;
  state.counters.value_error_mean += (error.value - state.counters.value_error_mean) / count;
}

// A loaded block may lack slots outside a window, but no others.
bool HasEnough(const SlotClasses& classes, const NewBlock& block) {
  bool any = false;
  for (uint32_t group = 0; group < classes.group_count(); ++group) {
    const bool there = !block.slots[group].is_none();
    if (!there && !classes.reach(group).windowed()) return false;
    any = any || there;
  }
  return any;
}

}  // namespace

std::optional<Published> JoinWhole(State& state, const PublishLocation& location,
                                   const NewBlock& block) {
  if (const BlockState before = BlockStateBefore(state, location, block);
      before != BlockState::kGood) {
    return Published{.final = before != BlockState::kDamaged};
  }
  const auto same = state.directory.FindChild(location.root_key, block.parent, block.tokens);
  if (!same) return std::nullopt;
  if (BlockStateOf(state, *same) == BlockState::kGood && !state.directory.IsWhole(*same)) {
    return std::nullopt;
  }
  return Join(state, *same, block, {});
}

Published PublishOne(State& state, const PublishLocation& location, const NewBlock& block,
                     const BlockRecord& hashed) {
  if (BlockStateBefore(state, location, block) != BlockState::kGood)
    return {};  // erased or
                // damaged
                // meanwhile
  if (!FreeCapacityInAccount(state, location, state.classes.block_charge_bytes())) return {};
  const auto same = state.directory.FindChild(location.root_key, block.parent, block.tokens);
  if (same) return Join(state, *same, block, hashed.crcs);
  if (!HasEnough(state.classes, block)) return {};

  BlockRecord record = hashed;
  record.account = state.account_of(location);
  record.publisher = location.tenant;
  record.epoch = location.epoch;
  record.below_epoch = location.below_epoch;
  record.announced = location.announced;
  record.published_s = static_cast<uint32_t>(state.clock.NowMicros() / 1'000'000);
  uint32_t holders = 0;
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    if (block.slots[group].is_none()) continue;
    holders += state.slots.references(block.slots[group]);
  }
  state.accounts.order().ReserveBlocks(state.directory.ids_end() + 1);
  const BlockId id =
      state.directory.Add(location.root_key, location.domain, block.parent, block.tokens, record);
  // Nothing fails from here on.
  state.directory.leases().Begin(id, holders);
  state.accounts.ghosts(record.account).Remove(record.key);  // the block is back
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    if (block.slots[group].is_none()) continue;
    state.slots.Retain(block.slots[group]);  // the index's own reference
    state.accounts.charges().MoveSlot(block.slots[group], record.account);
  }
  AddLease(state, block.parent);
  ++state.counters.published_total;
  CountError(state, record.error);
  Offer(state, id);
  return {.block = id, .slots = block.slots};
}

std::vector<Twin> MissingTwins(const State& state, const PublishLocation& location,
                               std::span<const BlockId> blocks,
                               const PerGroup<std::vector<SlotId>>& slots) {
  std::vector<Twin> twins;
  // The descendants of a bad block are bad too.
  if (state.IsStale(location) || BlockStateOf(state, blocks.back()) != BlockState::kGood)
    return twins;
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      const BlockRecord& record = state.directory.at(blocks[i]);
      if (!record.slots[state.classes.OpenClassOf(group)].is_none()) continue;
      twins.push_back({.block = blocks[i], .slot = slots[group][i]});
    }
  }
  return twins;
}

void AddTwins(State& state, const PublishLocation& location, std::span<const BlockId> blocks,
              const PerGroup<std::vector<SlotId>>& slots, std::span<const Twin> hashed) {
  uint64_t bytes = 0;
  for (const Twin& twin : hashed) bytes += state.classes.charge_bytes(twin.slot);
  if (!FreeCapacityInAccount(state, location, bytes)) return;
  // Meanwhile others may have added some. Twins that were present and have gone since have no
  // checksum here.
  std::vector<Twin> now = MissingTwins(state, location, blocks, slots);
  for (Twin& twin : now) {
    const auto known = std::ranges::find(hashed, twin.slot, &Twin::slot);
    if (known == hashed.end()) return;
    twin.crc = known->crc;
  }
  for (const Twin& twin : now) state.directory.ReserveSlot(twin.slot);
  for (const Twin& twin : now) AddPublishedSlot(state, twin.block, twin.slot, twin.crc);
  for (const BlockId block : blocks) Offer(state, block);
}

// If memory runs out the answers end as they do at a block that cannot be published.
Result<void> Publishing::Publish(const PublishLocation& location, std::span<NewBlock> blocks,
                                 std::vector<Published>& answers) {
  answers.clear();
  answers.reserve(blocks.size());
  Result<void> published;
  bool all = false;
  try {
    published = PublishSome(location, blocks, answers);
    all = published.has_value();
  } catch (const std::bad_alloc&) {
  }
  const bool ended = !answers.empty() && answers.back().block.is_none();
  if (!all && !ended && answers.size() < blocks.size()) answers.emplace_back();
  if (cache_.transfers() != nullptr) cache_.transfers()->Wake();
  return published;
}

Result<void> Publishing::PublishSome(const PublishLocation& location, std::span<NewBlock> blocks,
                                     std::vector<Published>& answers) {
  // True: go on with blocks[answers.size()].
  const auto add = [&](const Published& answer) {
    answers.push_back(answer);
    if (answer.block.is_none() || answers.size() == blocks.size()) return false;
    blocks[answers.size()].parent = answer.block;
    return true;
  };
  Digest key = location.root_key;
  const bool some_are_new = cache_.With([&](State& state) {
    while (const auto known = JoinWhole(state, location, blocks[answers.size()])) {
      if (!add(*known)) return false;
    }
    const BlockId parent = blocks[answers.size()].parent;
    if (!parent.is_none()) key = state.directory.at(parent).key;
    return true;
  });
  if (!some_are_new) return {};
  // Hashing needs no lock: the caller holds the slots and no thread writes them any more.
  std::vector<BlockRecord> records;
  records.reserve(blocks.size() - answers.size());  // so that the addresses of the checksums stay
                                                    // valid
  bool any_checksums = false;
  for (const NewBlock& block : blocks.subspan(answers.size())) {
    key = ChildKey(*location.domain, key, block.tokens.data(), cache_.block_tokens());
    BlockRecord& record =
        records.emplace_back(BlockRecord{.slots = block.slots, .key = key, .error = block.error});
    if (block.crcs != nullptr) {
      record.crcs = *block.crcs;
      continue;
    }
    for (uint32_t group = 0; group < cache_.classes().group_count(); ++group) {
      if (block.slots[group].is_none()) continue;
      cache_.slots().Checksum(block.slots[group], &record.crcs[group]);
      any_checksums = true;
    }
  }
  // A loaded block has checksums and does not wait for the device.
  if (any_checksums) QUIRE_TRY(cache_.slots().ops().Synchronize());
  AtSyncPoint("publish: hashed");
  // The caller holds the published blocks, so the next piece continues after them.
  size_t done = 0;
  const auto publish_some = [&](State& state) {
    for (; done < records.size(); ++done) {
      if (!state.directory.touched().MayGoOn()) return true;
      if (!add(PublishOne(state, location, blocks[answers.size()], records[done]))) return false;
    }
    return false;
  };
  while (cache_.With(publish_some)) AtSyncPoint("publish: some blocks are published");
  return {};
}

void Publishing::KeepTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                           const PerGroup<std::vector<SlotId>>& slots) {
  if (blocks.size() <= kBlocksPerHold) return KeepSomeTwins(location, blocks, slots);
  // If a later piece has no room, the twins of earlier ones are useless, and are evicted first.
  LockedState::ForPieces(blocks.size(), [&](size_t begin, size_t end) {
    PerGroup<std::vector<SlotId>> some;
    for (uint32_t group = 0; group < cache_.classes().group_count(); ++group) {
      const auto of_group = std::span(slots[group]).subspan(begin, end - begin);
      some[group].assign(of_group.begin(), of_group.end());
    }
    KeepSomeTwins(location, blocks.subspan(begin, end - begin), some);
  });
}

void Publishing::KeepSomeTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                               const PerGroup<std::vector<SlotId>>& slots) {
  std::vector<Twin> twins =
      cache_.With([&](State& state) { return MissingTwins(state, location, blocks, slots); });
  if (twins.empty()) return;
  // Hashing needs no lock: the caller holds the slots, and whole blocks are not written any more.
  for (Twin& twin : twins) cache_.slots().Checksum(twin.slot, &twin.crc);
  if (!cache_.slots().ops().Synchronize()) return;
  AtSyncPoint("keep twins: hashed");
  cache_.With([&](State& state) { AddTwins(state, location, blocks, slots, twins); });
}

bool Publishing::Intact(SlotId slot) {
  BlockId block;
  uint32_t crc = 0;
  const auto known = cache_.With([&](State& state) -> std::optional<bool> {
    block = state.directory.InSlot(slot);
    if (block.is_none()) return true;
    if (state.directory.at(block).block_state == BlockState::kDamaged) return false;
    crc = state.directory.at(block).crcs[cache_.classes().ClassOf(slot)];
    return std::nullopt;
  });
  if (known) return *known;
  uint32_t found = 0;
  cache_.slots().Checksum(slot, &found);
  if (!cache_.slots().ops().Synchronize()) return false;
  if (found == crc) return true;
  cache_.With([&](State& state) { Quarantine(state, block, BlockState::kDamaged); });
  return false;
}

VerifyReport Publishing::Verify() {
  VerifyReport report;
  const uint32_t end = cache_.With([](State& state) { return state.directory.ids_end(); });
  for (uint32_t i = 0; i < end; ++i) {
    const BlockId block(i);
    MutexLock one_at_a_time(cache_.reading_mutex());
    // Without a lease: that would make the block the most recent one.
    PerClass<uint32_t> crcs{};
    const auto slots = cache_.With([&](State& state) -> std::optional<PerClass<SlotId>> {
      if (!state.directory.contains(block)) return std::nullopt;
      crcs = state.directory.at(block).crcs;
      state.reading.Add(state.directory.at(block).slots);
      return state.directory.at(block).slots;
    });
    if (!slots) continue;
    PerClass<uint32_t> found = crcs;
    for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
      if (!(*slots)[c].is_none()) cache_.slots().Checksum((*slots)[c], &found[c]);
    }
    const auto read = cache_.slots().ops().Synchronize();
    if (!read) {
      LogError("verify: {}; the rest is not looked at", read.error().message);
      cache_.With([](State& state) { EndReading(state); });
      return report;
    }
    ++report.blocks;
    SlotId damaged;
    for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
      if (found[c] != crcs[c]) damaged = (*slots)[c];
    }
    AtSyncPoint("verify: a block was read");
    cache_.With([&](State& state) {
      // Unless the block left meanwhile.
      if (!damaged.is_none() && state.directory.InSlot(damaged) == block) {
        Quarantine(state, block, BlockState::kDamaged);
      }
      EndReading(state);
    });
    if (!damaged.is_none()) ++report.damaged;
  }
  return report;
}

}  // namespace quire::cache

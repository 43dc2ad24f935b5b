#include "cache/publish.h"

#include <algorithm>

#include "cache/below.h"
#include "cache/evict.h"
#include "cache/leases.h"

namespace quire::cache {
namespace {

// Nothing of before an erasure comes back.
BlockState BlockStateBefore(const State& state, const PublishLocation& location,
                            const NewBlock& block) {
  if (state.IsStale(location)) return BlockState::kErased;
  return block.parent.is_none() ? BlockState::kGood : BlockStateOf(state, block.parent);
}

// The caller's slot, held by others too, becomes that of a published block.
void AddPublishedSlot(State& state, BlockId block, SlotId slot, uint32_t crc) {
  state.directory.ReserveSlot(slot);
  state.directory.AddSlot(block, slot, crc);
  AddLease(state, block, state.slots.references(slot));
  state.slots.Retain(slot);
  state.accounts.MoveCharge(slot, state.directory.at(block).account);
  List(state, block);
}

// The block is known. Of the slots that are there the caller gets a hold; those that a window let
// go of are filled with the caller's.
Published Join(State& state, BlockId same, const NewBlock& block, const PerClass<uint32_t>& crcs) {
  if (BlockStateOf(state, same) != BlockState::kGood) return {};
  Published published{.block = same};
  bool deduplicated = false;
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    const SlotId own = block.slots[group];
    if (const SlotId there = state.directory.at(same).slots[group]; !there.is_none()) {
      // A fork may have published the slot that both hold.
      if (there != own) HoldSlot(state, there);
      published.slots[group] = there;
      deduplicated = deduplicated || !own.is_none();
      continue;
    }
    if (own.is_none()) continue;
    AddPublishedSlot(state, same, own, crcs[group]);
    published.slots[group] = own;
  }
  if (deduplicated) ++state.counters.deduplicated_total;
  return published;
}

// What was loaded may lack slots outside a window, but nothing else.
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
  if (BlockStateBefore(state, location, block) != BlockState::kGood) return {};  // meanwhile
  if (!FreeCapacityInAccount(state, location, state.classes.block_charge_bytes())) return {};
  const auto same = state.directory.FindChild(location.root_key, block.parent, block.tokens);
  if (same) return Join(state, *same, block, hashed.crcs);
  if (!HasEnough(state.classes, block)) return {};

  BlockRecord record = hashed;
  record.account = state.account_of(location);
  record.publisher = location.tenant;
  record.epoch = location.epoch;
  record.below_epoch = location.below_epoch;
  record.published_s = static_cast<uint32_t>(state.clock.NowMicros() / 1'000'000);
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    if (block.slots[group].is_none()) continue;
    record.leases += state.slots.references(block.slots[group]);
  }
  state.accounts.ReserveBlocks(state.directory.ids_end() + 1);
  const BlockId id =
      state.directory.Add(location.root_key, location.domain, block.parent, block.tokens, record);
  // Nothing fails from here on.
  for (uint32_t group = 0; group < state.classes.group_count(); ++group) {
    if (block.slots[group].is_none()) continue;
    state.slots.Retain(block.slots[group]);  // the index's own hold
    state.accounts.MoveCharge(block.slots[group], record.account);
  }
  AddLease(state, block.parent);
  ++state.counters.published_total;
  Offer(state, id);
  return {.block = id, .slots = block.slots};
}

std::vector<Twin> MissingTwins(const State& state, const PublishLocation& location,
                               std::span<const BlockId> blocks,
                               const PerGroup<std::vector<SlotId>>& slots) {
  std::vector<Twin> twins;
  // What continues a block that is not good any more is not good either.
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
  // Meanwhile others may have kept some. If some of theirs are gone there is no checksum for these.
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

}  // namespace quire::cache

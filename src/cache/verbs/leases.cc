#include "cache/verbs/leases.h"

#include <algorithm>
#include <utility>

#include "cache/verbs/evict.h"

namespace quire::cache {
namespace {

evict::BlockFacts FactsOf(const State& state, BlockId block) {
  return {.key = PolicyKey(state.directory.at(block).key),
          .parent = state.directory.tree().parent(block),
          .depth = state.directory.tree().depth(block)};
}

}  // namespace

BlockState BlockStateOf(const State& state, BlockId block) {
  const BlockRecord& record = state.directory.at(block);
  if (state.IsStale(record.publisher, record.epoch)) return BlockState::kErased;
  for (const SlotId slot : record.slots) {
    if (slot.is_none()) continue;
    const SlotWriters::Writer writer = state.slots.writers().of(slot);
    if (state.IsStale(writer.tenant, writer.epoch)) return BlockState::kErased;
  }
  return record.block_state;
}

void HoldSlot(State& state, SlotId slot) {
  state.slots.Retain(slot);
  const BlockId block = state.directory.InSlot(slot);
  AddLease(state, block);
  if (state.classes.windowed(slot) && !block.is_none()) List(state, block);
}

void ReleaseSlot(State& state, SlotId slot) {
  DropLease(state, state.directory.InSlot(slot));
  FreeIfLast(state, slot);
  const BlockId block = state.directory.InSlot(slot);  // none if it was just freed
  if (state.classes.windowed(slot) && !block.is_none()) List(state, block);
}

void FreeIfLast(State& state, SlotId slot) {
  // References change under this lock only, so this check is valid until the release below.
  const bool last = state.slots.references(slot) == 1;
  if (last && state.reading.Has(slot)) return state.reading.parked.push_back(slot);
  const SlotWriters::Writer writer = state.slots.writers().of(slot);
  const bool stale = state.IsStale(writer.tenant, writer.epoch);
  if (last && stale) {
    state.draining.push_back(slot);
    return state.slots.Renew(slot);  // no view that released the slot may take it again
  }
  if (!state.slots.Release(slot)) return;
  state.accounts.charges().CountWritten(writer.tenant, writer.epoch, -1);
  state.accounts.charges().RefundSlot(slot);
}

void EndDraining(State& state, SlotId slot) {
  const SlotWriters::Writer writer = state.slots.writers().of(slot);
  state.slots.Release(slot);
  state.accounts.charges().CountWritten(writer.tenant, writer.epoch, -1);
  state.accounts.charges().RefundSlot(slot);
  state.slots.writers().Forget(slot);
}

void EndReading(State& state) {
  for (const SlotId to : state.reading.to) {
    if (to.is_none()) continue;
    state.slots.writers().Forget(to);
    state.slots.Release(to);
  }
  const std::vector<SlotId> parked = std::move(state.reading.parked);
  state.reading = {};
  for (const SlotId slot : parked) FreeIfLast(state, slot);
}

void EndReading(State& state, const PerClass<SlotId>& slots) {
  state.reading.Remove(slots);
  std::vector<SlotId>& parked = state.reading.parked;
  const auto read =
      std::ranges::partition(parked, [&](SlotId slot) { return state.reading.Has(slot); });
  for (const SlotId slot : read) FreeIfLast(state, slot);
  parked.erase(read.begin(), read.end());
}

void AddLease(State& state, BlockId block, uint32_t holders) {
  state.directory.leases().Add(block, [&](BlockId changed) { List(state, changed); }, holders);
}

bool LeaseTowards(State& state, BlockId block, BlockId& leased) {
  const Directory& directory = state.directory;
  if (block.is_none() || directory.leases().of(block) > 0) return true;
  const BlockId parent = directory.tree().parent(block);
  if (parent.is_none() || directory.leases().of(parent) > 0) return true;
  const uint32_t before = directory.leases().LeasedBlocks(block);
  if (directory.tree().depth(block) + 1 - before <= kBlocksPerHold) return true;
  const BlockId last =
      std::exchange(leased, directory.tree().AncestorAt(block, before + kBlocksPerHold - 1));
  AddLease(state, leased);
  if (!last.is_none()) DropLease(state, last);
  return false;
}

void DropLease(State& state, BlockId block) {
  state.directory.leases().Drop(block, [&](BlockId changed) {
    List(state, changed);
    // The block can never be found again, and neither can its descendants; if some of these are
    // still present, it goes with the last of them.
    if (!state.directory.at(changed).is_good() && !state.directory.tree().has_children(changed)) {
      Drop(state, changed, MissReason::kNeverSeen);
    }
  });
}

void List(State& state, BlockId block) {
  const BlockRecord& record = state.directory.at(block);
  const bool is_leased = state.directory.leases().of(block) > 0;
  Evictable what;
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    const SlotId slot = record.slots[c];
    if (slot.is_none()) continue;
    const uint64_t charge_bytes = state.classes.charge_bytes(c);
    if (!state.classes.is_sealed(c)) what.twin_bytes += charge_bytes;
    const bool unheld = state.classes.reach(c).windowed() && state.slots.references(slot) == 1;
    if (!is_leased || unheld) what.bytes += charge_bytes;
  }
  what.listed = !is_leased ? Listed::kWhole : what.bytes > 0 ? Listed::kSlots : Listed::kNowhere;
  const bool moves = state.accounts.order().listed(block) != what.listed;
  state.accounts.order().List(block, record.account, what,
                              moves ? FactsOf(state, block) : evict::BlockFacts());
}

}  // namespace quire::cache

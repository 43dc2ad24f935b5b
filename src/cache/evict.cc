// The least recently used of what nobody holds goes first, twins before their block, and of others'
// blocks only what lies above their floors.
#include "cache/evict.h"

#include "cache/leases.h"
#include "cache/pin_verbs.h"

namespace quire::cache {
namespace {

void RemoveSlot(State& state, BlockId block, uint32_t slot_class) {
  const SlotId slot = state.directory.at(block).slots[slot_class];
  state.directory.RemoveSlot(block, slot_class);
  FreeIfLast(state, slot);
}

void EvictTwins(State& state, BlockId block) {
  for (uint32_t c = state.classes.group_count(); c < state.classes.count(); ++c) {
    if (!state.directory.at(block).slots[c].is_none()) RemoveSlot(state, block, c);
  }
  List(state, block);  // where it stood, with what is left of it
}

void EvictSlots(State& state, BlockId block) {
  PerClass<bool> going{};
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    const SlotId slot = state.directory.at(block).slots[c];
    going[c] =
        !slot.is_none() && state.classes.reach(c).windowed() && state.slots.references(slot) == 1;
  }
  state.accounts.Unlist(block);
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    if (going[c]) RemoveSlot(state, block, c);
  }
}

// Keeps the bookkeeping of hollow blocks within what the slots pay for: first at the expense of
// what its account does not use, then this path ends its life in the index.
void LimitEmpty(State& state, BlockId block) {
  const TenantId account = state.directory.at(block).account;
  const auto too_many = [&] { return state.directory.empty_count() > state.empty_max; };
  while (too_many() && state.accounts.listed_whole(account) > 0) {
    Drop(state, *state.accounts.WholeVictim(account), MissReason::kEvicted);
    ++state.counters.evicted_total;
  }
  if (too_many()) Quarantine(state, block, BlockState::kPassed);
}

void EvictVictim(State& state, const Victim& victim, MissReason reason) {
  ++state.accounts.counters(state.directory.at(victim.block).account).evicted_total;
  if (victim.goes == Goes::kWhole) {
    Drop(state, victim.block, reason);
    ++state.counters.evicted_total;
    return;
  }
  ++state.counters.evicted_passed_total;
  if (victim.goes == Goes::kTwins) return EvictTwins(state, victim.block);
  EvictSlots(state, victim.block);
  LimitEmpty(state, victim.block);
}

void DropOne(State& state, BlockId block, MissReason reason) {
  const BlockRecord record = state.directory.at(block);
  if (record.block_state == BlockState::kDamaged) reason = MissReason::kDamaged;
  if (record.block_state == BlockState::kPassed) reason = MissReason::kWindowPassed;
  if (record.block_state != BlockState::kErased) {
    state.directory.ghosts(record.account)
        .Add(record.key, {.reason = reason,
                          .gone_us = state.clock.NowMicros(),
                          .publisher = record.publisher,
                          .epoch = record.epoch});
  }
  const bool for_capacity = reason == MissReason::kEvicted || reason == MissReason::kQuota;
  if (state.has_store && record.sealed_below != Below::kDurable && for_capacity) {
    ++state.counters.evicted_unwritten_total;
  }
  state.accounts.Remove(block, for_capacity);
  state.directory.Remove(block);
  for (const SlotId slot : record.slots) {
    if (!slot.is_none()) FreeIfLast(state, slot);
  }
}

}  // namespace

Result<CapacityWanted> WantCapacity(State& state, const Asker& asker, uint64_t bytes) {
  LetTimePass(state);
  QUIRE_TRY(state.accounts.CheckCapacity(asker, bytes));
  if (!asker.may_evict) return CapacityWanted{};
  const uint64_t of_quota = state.accounts.WantedOfQuota(asker.tenant, bytes);
  return CapacityWanted{.of_quota = of_quota, .of_budget = 0, .bytes = bytes};
}

bool FreeCapacity(State& state, const Asker& asker, CapacityWanted& wanted) {
  uint32_t left = kBlocksPerHold;
  const auto evict = [&](const std::optional<Victim>& victim, MissReason reason) {
    if (!victim) return false;
    EvictVictim(state, *victim, reason);
    --left;
    return true;
  };
  while (state.accounts.capacity_bytes(asker.tenant) < wanted.of_quota) {
    if (left == 0 || state.IsWaiting()) return false;
    if (!evict(state.accounts.VictimOf(asker.tenant), MissReason::kQuota)) break;
  }
  if (wanted.bytes > 0 && wanted.of_budget == 0) {
    wanted.of_budget = state.accounts.WantedOfBudget(wanted.bytes);
  }
  while (state.accounts.ledger().available_bytes() < wanted.of_budget) {
    if (left == 0 || state.IsWaiting()) return false;
    if (!evict(state.accounts.VictimFor(asker.tenant), MissReason::kEvicted)) break;
  }
  return !state.IsWaiting();
}

bool FreeCapacityInAccount(State& state, const PublishLocation& location, uint64_t bytes) {
  const TenantId account = state.account_of(location);
  if (account == location.tenant) return true;  // it has paid for its slots already
  if (bytes > state.accounts.capacity_bytes(account) + state.accounts.evictable_bytes(account)) {
    return false;
  }
  while (state.accounts.capacity_bytes(account) < bytes) {
    const auto victim = state.accounts.VictimOf(account);
    if (!victim) return false;  // what went is draining
    EvictVictim(state, *victim, MissReason::kQuota);
  }
  return true;
}

bool EvictOldest(State& state) {
  const auto victim = state.accounts.OldestVictim();
  if (victim) EvictVictim(state, *victim, MissReason::kEvicted);
  return victim.has_value();
}

void EvictDownTo(State& state, uint64_t bytes, uint64_t empty_max) {
  while (state.accounts.ledger().used_bytes() > bytes && !state.IsWaiting()) {
    const auto victim = state.accounts.VictimFor(TenantId::None());
    QUIRE_CHECK_MSG(victim.has_value(), "there is less to evict than was counted");
    EvictVictim(state, *victim, MissReason::kEvicted);
  }
  // What is leased stays hollow until its path ends.
  while (state.directory.empty_count() > empty_max && !state.IsWaiting()) {
    const auto victim = state.accounts.VictimFor(TenantId::None());
    if (!victim) return;
    EvictVictim(state, *victim, MissReason::kEvicted);
  }
}

bool Expire(State& state, TenantId account) {
  for (uint32_t i = 0; i < kBlocksPerHold; ++i) {
    const auto block = state.accounts.Expired(account);
    if (!block) return false;
    EvictVictim(state, {.block = *block}, MissReason::kExpired);
  }
  return true;
}

void LetTimePass(State& state) {
  const uint64_t next_end_us = state.pins.next_end_us();
  if (!state.accounts.hears_time() && next_end_us == UINT64_MAX) return;
  state.accounts.Advance();
  const uint64_t now_us = state.clock.NowMicros();
  if (now_us < next_end_us) return;
  for (const BlockId last : state.pins.TakeEnded(now_us)) ReleasePin(state, last);
}

void Drop(State& state, BlockId block, MissReason reason) {
  // A longer row of them goes on when its turn comes: nobody leases it, so it can be evicted.
  for (uint32_t i = 0; i < kBlocksPerHold; ++i) {
    const BlockId parent = state.directory.parent(block);
    DropOne(state, block, reason);
    // A hollow block that leads nowhere is of no use, nor is one that is never found again.
    if (parent.is_none() || state.directory.has_children(parent)) return;
    const BlockRecord& before = state.directory.at(parent);
    if (before.leases > 0 || (before.is_good() && !before.is_empty())) return;
    block = parent;
  }
}

void Quarantine(State& state, BlockId block, BlockState block_state) {
  if (!state.directory.at(block).is_good()) return;
  const std::vector<BlockId> marked = state.directory.Mark(block, block_state);
  EndPinsOfBadBlocks(state);
  // What is leased goes with its last lease; a hollow block may go with the one after it.
  for (size_t i = marked.size(); i > 0; --i) {
    const BlockId id = marked[i - 1];
    if (state.directory.contains(id) && state.directory.at(id).leases == 0) {
      Drop(state, id, MissReason::kEvicted);
    }
  }
}

}  // namespace quire::cache

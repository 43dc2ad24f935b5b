// Eviction: the least recently used of all blocks without leases first, twins before their block,
// and of other tenants only blocks above their floors.
#include "cache/verbs/evict.h"

#include "cache/verbs/leases.h"
#include "cache/verbs/pin_verbs.h"
#include "cache/verbs/quarantine.h"

namespace quire::cache {
namespace {

void RemoveSlot(State& state, BlockId block, uint32_t slot_class) {
  const SlotId slot = state.directory.at(block).slots[slot_class];
  state.directory.RemoveSlot(block, slot_class);
  FreeIfLast(state, slot);
}

void EvictTwins(State& state, BlockId block) {
  state.directory.touched().Count(1);
  for (uint32_t c = state.classes.group_count(); c < state.classes.count(); ++c) {
    if (!state.directory.at(block).slots[c].is_none()) RemoveSlot(state, block, c);
  }
  if (state.classes.has_ladder()) ++state.counters.evicted_twins_total;
  List(state, block);  // at its former place, with its remaining slots
}

void EvictSlots(State& state, BlockId block) {
  state.directory.touched().Count(1);
  PerClass<bool> going{};
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    const SlotId slot = state.directory.at(block).slots[c];
    going[c] =
        !slot.is_none() && state.classes.reach(c).windowed() && state.slots.references(slot) == 1;
  }
  state.accounts.order().Unlist(block);
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    if (going[c]) RemoveSlot(state, block, c);
  }
}

// Keeps the number of blocks without bytes within what the slots pay for: first evicts unleased
// blocks of the account, then takes this block and its descendants out of the index. After a shrink
// that is a lot of work; the next blocks that become empty continue it.
void LimitEmpty(State& state, BlockId block) {
  const TenantId account = state.directory.at(block).account;
  const EvictionOrder& order = state.accounts.order();
  const auto too_many = [&] { return state.directory.empty_count() > state.empty_max; };
  while (too_many() && order.listed_whole(account) > 0) {
    if (!state.directory.touched().MayGoOn()) return;
    Drop(state, *order.WholeVictim(account), MissReason::kEvicted);
    ++state.counters.evicted_total;
  }
  if (too_many()) Quarantine(state, block, BlockState::kPassed);
}

// Stop evicting while freed slots are still draining or being read: evicting more would not free
// them sooner.
bool MayEvict(const State& state) {
  return state.directory.touched().MayGoOn() && !state.IsWaiting();
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
    state.accounts.ghosts(record.account)
        .Add(record.key, {.reason = reason,
                          .gone_us = state.clock.NowMicros(),
                          .publisher = record.publisher,
                          .epoch = record.epoch});
  }
  const bool is_stored =
      state.directory.write_behind().below(block, /*twins=*/false) == Below::kDurable;
  const bool for_capacity = reason == MissReason::kEvicted || reason == MissReason::kQuota;
  if (state.has_store && !is_stored && for_capacity) {
    ++state.counters.evicted_unwritten_total;
  }
  state.accounts.order().Remove(block, for_capacity);
  MovePast(state, block);
  state.directory.Remove(block);
  for (const SlotId slot : record.slots) {
    if (!slot.is_none()) FreeIfLast(state, slot);
  }
}

}  // namespace

CapacityWanted WantCapacity(State& state, const Asker& asker, uint64_t bytes) {
  if (!asker.may_evict) return CapacityWanted{};
  const uint64_t of_quota = state.accounts.WantedOfQuota(asker.tenant, bytes);
  return CapacityWanted{.of_quota = of_quota, .of_budget = 0, .bytes = bytes};
}

bool FreeCapacity(State& state, const Asker& asker, CapacityWanted& wanted) {
  uint32_t left = kBlocksPerHold;
  const Charges& charges = state.accounts.charges();
  const auto may_go_on = [&] { return left > 0 && MayEvict(state); };
  const auto evict = [&](const std::optional<Victim>& victim, MissReason reason) {
    if (!victim) return false;
    EvictVictim(state, *victim, reason);
    --left;
    return true;
  };
  while (charges.account(asker.tenant).capacity_bytes() < wanted.of_quota) {
    if (!may_go_on()) return false;
    if (!evict(state.accounts.order().VictimOf(asker.tenant), MissReason::kQuota)) break;
  }
  if (wanted.bytes > 0 && wanted.of_budget == 0) {
    wanted.of_budget = state.accounts.WantedOfBudget(wanted.bytes);
  }
  while (charges.ledger().available_bytes() < wanted.of_budget) {
    if (!may_go_on()) return false;
    if (!evict(state.accounts.VictimFor(asker.tenant), MissReason::kEvicted)) break;
  }
  return !state.IsWaiting();
}

bool FreeCapacityInAccount(State& state, const PublishLocation& location, uint64_t bytes) {
  const TenantId account = state.account_of(location);
  if (account == location.tenant) return true;  // it has paid for its slots already
  const quota::Account& payer = state.accounts.charges().account(account);
  const EvictionOrder& order = state.accounts.order();
  if (bytes > payer.capacity_bytes() + order.evictable_bytes(account)) return false;
  while (payer.capacity_bytes() < bytes) {
    if (!state.directory.touched().MayGoOn(kRecordsPerHold * 3 / 4))
      return false;  // retried by a
                     // later call
    const auto victim = order.VictimOf(account);
    if (!victim) return false;  // its last slots are draining
    EvictVictim(state, *victim, MissReason::kQuota);
  }
  return true;
}

bool EvictOldest(State& state) {
  const auto victim = state.accounts.order().OldestVictim();
  if (victim) EvictVictim(state, *victim, MissReason::kEvicted);
  return victim.has_value();
}

bool EvictDownTo(State& state, uint64_t bytes, uint64_t empty_max) {
  uint32_t left = kBlocksPerHold;
  const quota::Ledger& ledger = state.accounts.charges().ledger();
  while (ledger.used_bytes() > bytes || state.directory.empty_count() > empty_max) {
    if (left-- == 0 || !MayEvict(state)) return false;
    const auto victim = state.accounts.VictimFor(TenantId::None());
    QUIRE_CHECK_MSG(victim || ledger.used_bytes() <= bytes,
                    "there is less to evict than was counted");
    if (!victim) break;  // a leased block stays without bytes until its path ends
    EvictVictim(state, *victim, MissReason::kEvicted);
  }
  return !state.IsWaiting();
}

bool EvictAccountDownTo(State& state, TenantId account, uint64_t bytes) {
  for (uint32_t left = kBlocksPerHold;
       state.accounts.charges().account(account).used_bytes() > bytes; --left) {
    if (left == 0 || !MayEvict(state)) return false;
    const auto victim = state.accounts.order().VictimOf(account);
    if (!victim) return true;
    EvictVictim(state, *victim, MissReason::kQuota);
  }
  return !state.IsWaiting();
}

bool Expire(State& state, TenantId account) {
  for (uint32_t i = 0; i < kBlocksPerHold && state.directory.touched().MayGoOn(); ++i) {
    const auto block = state.accounts.order().Expired(account);
    if (!block) return false;
    EvictVictim(state, {.block = *block}, MissReason::kExpired);
  }
  return true;
}

bool LetTimePass(State& state) {
  const uint64_t next_end_us = state.pins.next_end_us();
  if (!state.accounts.order().hears_time() && next_end_us == UINT64_MAX) return false;
  state.accounts.order().Advance();
  const uint64_t now_us = state.clock.NowMicros();
  if (now_us < next_end_us) return false;
  state.pins.EndBy(now_us, kBlocksPerHold, [&](BlockId last) { AddLease(state, last); });
  while (state.pins.is_ending() && state.directory.touched().MayGoOn()) UnpinOne(state);
  return state.pins.is_ending() || state.pins.next_end_us() <= now_us;
}

// Deferred leases first: a request that waits for room may need the blocks that they release.
bool SettleSome(State& state) {
  while (state.has_work()) {
    if (!state.directory.touched().MayGoOn()) return true;
    if (state.directory.leases().has_deferred()) {
      DropLease(state, state.directory.leases().TakeDeferred());
    } else if (!state.markings.empty()) {
      MarkOne(state);
    } else {
      UnpinOne(state);
    }
  }
  return false;
}

void Drop(State& state, BlockId block, MissReason reason) {
  // A longer row of such blocks is removed later: they have no leases, so they can be evicted.
  for (uint32_t i = 0; i < kBlocksPerHold; ++i) {
    const BlockId parent = state.directory.tree().parent(block);
    DropOne(state, block, reason);
    // A block without bytes and without descendants is useless, as is one that is never found
    // again.
    if (parent.is_none() || state.directory.tree().has_children(parent)) return;
    const BlockRecord& before = state.directory.at(parent);
    const bool is_leased = state.directory.leases().of(parent) > 0;
    if (is_leased || (before.is_good() && !before.is_empty())) return;
    block = parent;
  }
}

uint64_t Evict(LockedState& cache, uint64_t blocks) {
  uint64_t evicted = 0;
  bool more = true;
  while (more && evicted < blocks) {
    cache.With([&](State& state) {
      if (LetTimePass(state)) return;
      const uint64_t end = std::min<uint64_t>(blocks, evicted + kBlocksPerHold);
      while (evicted < end && state.directory.touched().MayGoOn() && (more = EvictOldest(state)))
        ++evicted;
    });
  }
  return evicted;
}

void LetTimePass(LockedState& cache) {
  while (cache.With([](State& state) { return LetTimePass(state); })) {
  }
}

}  // namespace quire::cache

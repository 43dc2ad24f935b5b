// What goes when room is needed: the least recently used of what nobody holds, twins before their
// block, and of others' blocks only what lies above their floors.
#include <algorithm>
#include <utility>

#include "cache/core.h"

namespace quire::cache {

uint64_t Core::Evict(uint64_t blocks) {
  MutexLock lock(mutex_);
  LetTimePass();
  uint64_t evicted = 0;
  for (; evicted < blocks; ++evicted) {
    std::optional<Victim> oldest;
    for (const auto& tenant : tenants_) {
      const auto victim = VictimOf(*tenant);
      if (victim && (!oldest || victim->stamp < oldest->stamp)) oldest = victim;
    }
    if (!oldest) break;
    EvictVictim(*oldest, MissReason::kEvicted);
  }
  return evicted;
}

// The least recent of both lists: a block that nobody leases goes whole, of one that windows have
// passed what nobody holds.
std::optional<Core::Victim> Core::VictimOf(const Tenant& tenant) const {
  std::optional<Victim> victim;
  if (const auto whole = tenant.lists.whole->Victim()) {
    const BlockRecord& record = blocks_.at(*whole);
    const uint64_t twin_bytes = TwinBytes(record);
    const bool twins = twin_bytes > 0 && twin_bytes < record.listed_bytes;
    victim = {.block = *whole,
              .goes = twins ? Goes::kTwins : Goes::kWhole,
              .stamp = record.stamp,
              .bytes = twins ? twin_bytes : record.listed_bytes};
  }
  if (const auto passed = tenant.lists.passed->Victim()) {
    const BlockRecord& record = blocks_.at(*passed);
    if (!victim || record.stamp < victim->stamp) {
      victim = {.block = *passed,
                .goes = Goes::kPassed,
                .stamp = record.stamp,
                .bytes = record.listed_bytes};
    }
  }
  return victim;
}

// The least recent victim over all tenants whom it does not bring below their floors.
std::optional<Core::Victim> Core::VictimFor(const Tenant* tenant) const {
  std::optional<Victim> oldest;
  for (const auto& other : tenants_) {
    const auto victim = VictimOf(*other);
    if (!victim || (oldest && oldest->stamp < victim->stamp)) continue;
    const bool own = other.get() == tenant;
    if (own || other->account.MayLose(victim->bytes)) oldest = victim;
  }
  return oldest;
}

// What VictimFor will surely find, one after the other.
uint64_t Core::EvictableFor(const Tenant* tenant) const {
  const uint32_t classes = residual_blocks() > 0 ? class_count() : layout_.part_count();
  uint64_t victim_bytes = 0;
  for (uint32_t c = 0; c < classes; ++c) victim_bytes += charges_[c];
  uint64_t bytes = tenant != nullptr ? tenant->evictable_bytes : 0;
  for (const auto& other : tenants_) {
    if (other.get() == tenant) continue;
    bytes += other->account.Spare(other->evictable_bytes, victim_bytes,
                                  /*same_size=*/classes == 1);
  }
  return bytes;
}

void Core::EvictVictim(const Victim& victim, MissReason reason) {
  ++TenantOf(blocks_.at(victim.block).account).stats.evicted_total;
  if (victim.goes == Goes::kWhole) {
    Drop(victim.block, reason);
    ++counters_.evicted_total;
    return;
  }
  ++counters_.evicted_passed_total;
  if (victim.goes == Goes::kTwins) return EvictTwins(victim.block);
  EvictParts(victim.block);
  LimitHollow(victim.block);
}

void Core::EvictParts(BlockId block) {
  PerClass<SlotId> going{};
  for (uint32_t c = 0; c < class_count(); ++c) {
    const SlotId slot = blocks_.at(block).slots[c];
    if (slot.is_none() || !reaches_[c].windowed() || references(slot) > 1) continue;
    going[c] = slot;
  }
  Unlist(block);
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (going[c].is_none()) continue;
    if (c >= layout_.part_count()) --twin_slots_;
    blocks_.RemoveSlot(block, c);
    FreeIfLast(going[c]);
  }
  if (blocks_.at(block).hollow()) ++hollow_;
}

// Keeps the bookkeeping of hollow blocks within what the slots pay for: first at the expense of
// what its account does not use, then this path ends its life in the index.
void Core::LimitHollow(BlockId block) {
  Tenant& account = TenantOf(blocks_.at(block).account);
  while (hollow_ > hollow_max_ && account.lists.whole->size() > 0) {
    Drop(*account.lists.whole->Victim(), MissReason::kEvicted);
    ++counters_.evicted_total;
  }
  if (hollow_ > hollow_max_) Quarantine(block, Standing::kPassed);
}

// The least recent first, whatever the policy would choose, so it ends at the first that is young
// enough.
void Core::Expire(Tenant& account) {
  if (account.options.ttl_us == 0) return;
  const uint64_t now_us = clock_.NowMicros();
  while (const auto victim = account.lists.aging->Victim()) {
    if (now_us - blocks_.at(*victim).listed_us < account.options.ttl_us) return;
    EvictVictim({.block = *victim, .goes = Goes::kWhole, .stamp = 0, .bytes = 0},
                MissReason::kExpired);
  }
}

// `reason` is what later lookups will hear, unless the block's standing says more.
void Core::Drop(BlockId block, MissReason reason) {
  while (true) {
    const BlockId parent = index_.parent(block);
    DropOne(block, reason);
    // A hollow block that leads nowhere is of no use, nor is one that is never found again.
    if (parent.is_none() || index_.has_children(parent)) return;
    const BlockRecord& before = blocks_.at(parent);
    if (before.leases > 0 || (before.standing == Standing::kGood && !before.hollow())) return;
    block = parent;
  }
}

void Core::DropOne(BlockId block, MissReason reason) {
  const BlockRecord record = blocks_.at(block);
  Tenant& account = TenantOf(record.account);
  if (record.standing == Standing::kDamaged) reason = MissReason::kDamaged;
  if (record.standing == Standing::kPassed) reason = MissReason::kWindowPassed;
  if (record.standing != Standing::kErased) {
    account.ghosts.Add(record.key, {.reason = reason,
                                    .gone_us = clock_.NowMicros(),
                                    .publisher = record.publisher,
                                    .epoch = TenantOf(record.publisher).epoch});
  }
  const index::RootId root = index_.root(block);
  const bool for_room = reason == MissReason::kEvicted || reason == MissReason::kQuota;
  Unlist(block, for_room ? Stays::kEvicted : Stays::kNo);
  if (record.hollow()) --hollow_;
  index_.Remove(block);
  if (index_.empty(root)) {
    index_.RemoveRoot(roots_[root.number()].key);
    roots_[root.number()] = {};
    std::erase(account.roots, root);
  }
  --account.block_count;
  blocks_.Remove(block);
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (record.slots[c].is_none()) continue;
    if (c >= layout_.part_count()) --twin_slots_;
    FreeIfLast(record.slots[c]);
  }
}

}  // namespace quire::cache

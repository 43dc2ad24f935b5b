// Who holds what: leases, holds of sequences, and the lists of what nobody holds.
#include <cstring>
#include <utility>
#include <vector>

#include "cache/core.h"

namespace quire {

Lease::Lease(cache::Core* core, std::vector<SlotId> slots)
    : core_(core), slots_(std::move(slots)) {}

Lease::Lease(Lease&& other) noexcept
    : core_(std::exchange(other.core_, nullptr)), slots_(std::exchange(other.slots_, {})) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    Release();
    core_ = std::exchange(other.core_, nullptr);
    slots_ = std::exchange(other.slots_, {});
  }
  return *this;
}

Lease::~Lease() { Release(); }

void Lease::Release(Fence* fence) {
  if (slots_.empty()) return;
  if (fence != nullptr) fence->Wait();
  core_->ReleaseSlots(slots_);
  slots_.clear();
}

namespace cache {

void Core::HoldSlots(std::span<const SlotId> slots) {
  MutexLock lock(mutex_);
  for (SlotId slot : slots) HoldSlot(slot);
}

void Core::ReleaseSlots(std::span<const SlotId> slots) {
  MutexLock lock(mutex_);
  // Deepest first: a parent must become evictable after its children.
  for (size_t i = slots.size(); i > 0; --i) ReleaseSlot(slots[i - 1]);
}

void Core::HoldSlot(SlotId slot) {
  PoolOf(slot).Retain(Local(slot));
  const BlockId block = blocks_.InSlot(slot);
  AddLease(block);
  if (reaches_[ClassOf(slot)].windowed() && !block.is_none()) List(block);
}

void Core::ReleaseSlot(SlotId slot) {
  DropLease(blocks_.InSlot(slot));
  FreeIfLast(slot);
  const BlockId block = blocks_.InSlot(slot);  // none if it just went
  if (reaches_[ClassOf(slot)].windowed() && !block.is_none()) List(block);
}

// A leased block leases its parent. Whoever holds a block mostly holds its path too, but a view
// that was taken before its blocks were published may hold other copies of the parents, and a
// window lets go of them; counting here keeps the policy's promise in every case: what is evictable
// has no leased descendant.
void Core::AddLease(BlockId block) {
  while (!block.is_none() && blocks_.at(block).leases++ == 0) {
    List(block);
    block = index_.parent(block);
  }
}

void Core::DropLease(BlockId block) {
  while (!block.is_none()) {
    BlockRecord& record = blocks_.at(block);
    QUIRE_CHECK(record.leases > 0);
    if (--record.leases > 0) return;
    const BlockId parent = index_.parent(block);
    List(block);
    // It can never be found again, and neither can what continues it; if some of that is still to
    // go, this goes with it.
    if (record.standing != Standing::kGood && !index_.has_children(block)) {
      Drop(block, MissReason::kNeverSeen);
    }
    block = parent;
  }
}

// The first bits of a block's key are as good as all, to know it again.
uint64_t Core::PolicyKey(BlockId block) const {
  uint64_t key = 0;
  std::memcpy(&key, blocks_.at(block).key.data(), sizeof(key));
  return key;
}

evict::BlockFacts Core::FactsOf(BlockId block) const {
  const BlockId parent = index_.parent(block);
  return {.key = PolicyKey(block),
          .parent = parent.is_none() ? parent : BlockId(blocks_.at(parent).local)};
}

void Core::NoteUse(const Place& place, std::span<const BlockId> path, uint64_t prompt_tokens,
                   uint64_t output_tokens) {
  if (path.empty()) return;
  MutexLock lock(mutex_);
  EvictionList& whole = AccountOf(place).whole;
  if (!whole.hears_requests()) return;
  std::vector<uint64_t> keys;
  keys.reserve(path.size());
  for (const BlockId block : path) keys.push_back(PolicyKey(block));
  whole.Begin({.time_ms = clock_.NowMicros() / 1000,
               .keys = keys,
               .prompt_tokens = prompt_tokens,
               .output_tokens = output_tokens});
}

// Puts a block into the list where it now belongs, as its most recent one if it was not there.
void Core::List(BlockId block) {
  BlockRecord& record = blocks_.at(block);
  Tenant& account = TenantOf(record.account);
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) {
    const SlotId slot = record.slots[part];
    if (slot.is_none()) continue;
    const bool unheld = reaches_[part].windowed() && references(slot) == 1;
    if (record.leases == 0 || unheld) bytes += charges_[part];
  }
  const Listed wanted = record.leases == 0 ? Listed::kWhole
                        : bytes > 0        ? Listed::kParts
                                           : Listed::kNowhere;
  if (record.listed != wanted) {
    Unlist(block);
    if (wanted != Listed::kNowhere) {
      (wanted == Listed::kWhole ? account.whole : account.passed).Add(record.local, FactsOf(block));
      record.stamp = next_stamp_++;
      if (account.options.ttl_us > 0) record.listed_us = clock_.NowMicros();
    }
    record.listed = wanted;
  }
  account.evictable_bytes += bytes - record.listed_bytes;
  record.listed_bytes = bytes;
}

void Core::Unlist(BlockId block, bool for_room) {
  BlockRecord& record = blocks_.at(block);
  Tenant& account = TenantOf(record.account);
  if (record.listed == Listed::kWhole) {
    for_room ? account.whole.Evict(record.local) : account.whole.Remove(record.local);
  }
  if (record.listed == Listed::kParts) account.passed.Remove(record.local);
  record.listed = Listed::kNowhere;
  account.evictable_bytes -= std::exchange(record.listed_bytes, 0);
}

}  // namespace cache
}  // namespace quire

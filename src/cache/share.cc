// Who holds what: leases, holds of sequences, and the eviction of blocks that nobody holds.
#include <utility>

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
    // It can never be found again, and neither could what continued it, which went before.
    if (record.standing != Standing::kGood) Drop(block);
    block = parent;
  }
}

// Puts a block into the list where it now belongs, as its most recent one if it was not there.
void Core::List(BlockId block) {
  BlockRecord& record = blocks_.at(block);
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
      (wanted == Listed::kWhole ? policy_ : passed_)->Add(block);
      record.stamp = next_stamp_++;
    }
    record.listed = wanted;
  }
  evictable_bytes_ += bytes - record.listed_bytes;
  record.listed_bytes = bytes;
}

void Core::Unlist(BlockId block) {
  BlockRecord& record = blocks_.at(block);
  if (record.listed == Listed::kWhole) policy_->Remove(block);
  if (record.listed == Listed::kParts) passed_->Remove(block);
  record.listed = Listed::kNowhere;
  evictable_bytes_ -= std::exchange(record.listed_bytes, 0);
}

void Core::FreeIfLast(SlotId slot) {
  if (PoolOf(slot).Release(Local(slot))) ledger_.Refund(charges_[ClassOf(slot)]);
}

uint64_t Core::Evict(uint64_t blocks) {
  MutexLock lock(mutex_);
  uint64_t evicted = 0;
  for (; evicted < blocks && CanEvict(); ++evicted) EvictOne();
  return evicted;
}

// The least recent of both lists: a block that nobody leases goes whole, of one that windows have
// passed what nobody holds.
void Core::EvictOne() {
  const auto whole = policy_->Victim();
  const auto passed = passed_->Victim();
  QUIRE_CHECK(whole || passed);
  if (!passed || (whole && blocks_.at(*whole).stamp < blocks_.at(*passed).stamp)) {
    Drop(*whole);
    ++counters_.evicted_total;
  } else {
    EvictParts(*passed);
    ++counters_.evicted_passed_total;
    LimitHollow(*passed);
  }
}

void Core::EvictParts(BlockId block) {
  Unlist(block);
  for (uint32_t part = 0; part < layout_.part_count(); ++part) {
    const SlotId slot = blocks_.at(block).slots[part];
    if (slot.is_none() || !reaches_[part].windowed() || references(slot) > 1) continue;
    blocks_.RemoveSlot(block, part);
    FreeIfLast(slot);
  }
  if (blocks_.at(block).hollow()) ++hollow_;
}

// Keeps the bookkeeping of hollow blocks within what the slots pay for: first at the expense of
// what nobody uses, then this path ends its life in the index.
void Core::LimitHollow(BlockId block) {
  while (hollow_ > hollow_max_ && policy_->size() > 0) {
    Drop(*policy_->Victim());
    ++counters_.evicted_total;
  }
  if (hollow_ > hollow_max_) Quarantine(block, Standing::kPassed);
}

void Core::Drop(BlockId block) {
  while (true) {
    const PerPart<SlotId> slots = blocks_.at(block).slots;
    const index::RootId root = index_.root(block);
    const BlockId parent = index_.parent(block);
    Unlist(block);
    if (blocks_.at(block).hollow()) --hollow_;
    index_.Remove(block);
    if (index_.empty(root)) index_.RemoveRoot(root_keys_[root.number()]);
    blocks_.Remove(block);
    for (const SlotId slot : slots) {
      if (!slot.is_none()) FreeIfLast(slot);
    }
    // A hollow block that leads nowhere is of no use.
    if (parent.is_none() || index_.has_children(parent)) return;
    const BlockRecord& before = blocks_.at(parent);
    if (before.leases > 0 || !before.hollow()) return;
    block = parent;
  }
}

}  // namespace cache
}  // namespace quire

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
  sealed_->Retain(slot);
  AddLease(blocks_.InSlot(slot));
}

void Core::ReleaseSlot(SlotId slot) {
  DropLease(blocks_.InSlot(slot));
  FreeIfLast(slot);
}

// A leased block leases its parent. Whoever holds a block mostly holds its path too, but a view
// that was taken before its blocks were published may hold other copies of the parents; counting
// here keeps the policy's promise in every case: what is evictable has no leased descendant.
void Core::AddLease(BlockId block) {
  while (!block.is_none() && blocks_.at(block).leases++ == 0) {
    policy_->Remove(block);
    block = index_.parent(block);
  }
}

void Core::DropLease(BlockId block) {
  while (!block.is_none()) {
    BlockRecord& record = blocks_.at(block);
    QUIRE_CHECK(record.leases > 0);
    if (--record.leases > 0) return;
    const BlockId parent = index_.parent(block);
    policy_->Add(block);
    // It can never be found again, and neither could what continued it, which went before.
    if (record.quarantined) Drop(block);
    block = parent;
  }
}

void Core::FreeIfLast(SlotId slot) {
  if (sealed_->Release(slot)) ledger_.Refund(charge_bytes_);
}

uint64_t Core::Evict(uint64_t blocks) {
  MutexLock lock(mutex_);
  uint64_t evicted = 0;
  for (; evicted < blocks && policy_->size() > 0; ++evicted) EvictOne();
  return evicted;
}

void Core::EvictOne() {
  const auto victim = policy_->Victim();
  QUIRE_CHECK(victim.has_value());
  Drop(*victim);
  ++counters_.evicted_total;
}

void Core::Drop(BlockId block) {
  const SlotId slot = blocks_.at(block).slot;
  const index::RootId root = index_.root(block);
  policy_->Remove(block);
  index_.Remove(block);
  if (index_.empty(root)) index_.RemoveRoot(root_keys_[root.number()]);
  blocks_.Remove(block);
  FreeIfLast(slot);
}

}  // namespace cache
}  // namespace quire

// Who holds what: leases, holds of sequences, and the lists of what nobody holds.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cache/core.h"
#include "cache/hit_length.h"

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

OwnedSlots& OwnedSlots::operator=(OwnedSlots&& other) noexcept {
  if (this != &other) {
    Release();
    core_ = std::exchange(other.core_, nullptr);
    slots_ = std::move(other.slots_);
  }
  return *this;
}

void OwnedSlots::Add(OwnedSlots&& more) {
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    slots_[c].reserve(slots_[c].size() + more.slots_[c].size());
  }
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    slots_[c].insert(slots_[c].end(), more.slots_[c].begin(), more.slots_[c].end());
  }
  if (core_ == nullptr) core_ = more.core_;
  more.Disown();
}

void OwnedSlots::Release() {
  Core* const core = std::exchange(core_, nullptr);
  if (core == nullptr) return;
  for (const std::vector<SlotId>& slots : slots_) core->ReleaseSlots(slots);
}

void Core::HoldSlots(std::span<const SlotId> slots) {
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    for (SlotId slot : slots) HoldSlot(slot);
  });
}

void Core::ReleaseSlots(std::span<const SlotId> slots) {
  if (slots.empty()) return;
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    // Deepest first: a parent must become evictable after its children.
    for (size_t i = slots.size(); i > 0; --i) ReleaseSlot(slots[i - 1]);
  });
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
  evict::BlockFacts facts = {
      .key = PolicyKey(block), .parent = index_.parent(block), .depth = index_.depth(block)};
  const BlockRecord& record = blocks_.at(block);
  if (record.retained_until_us > 0) {
    facts.priority = record.priority;
    // In the milliseconds of requests, not a moment early; the largest is for good.
    const uint64_t until_us = record.retained_until_us;
    facts.expires_ms = until_us == UINT64_MAX ? 0 : until_us / 1000 + (until_us % 1000 > 0 ? 1 : 0);
  }
  return facts;
}

void Core::EndUse(const Place& place, const PathUse& use, std::span<const SlotId> slots) {
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    Tenant& account = AccountOf(place);
    if (!use.path.empty()) BeginUse(account, place, use);
    for (size_t i = slots.size(); i > 0; --i) ReleaseSlot(slots[i - 1]);
    account.lists.whole->End();
  });
}

void Core::BeginUse(Tenant& account, const Place& place, const PathUse& use) {
  keys_.clear();
  for (const BlockId block : use.path) keys_.push_back(PolicyKey(block));
  // A prompt's last token is never looked up.
  const uint64_t asked =
      use.asked
          ? std::min<uint64_t>(ReusableBlocks(use.prompt_tokens, block_tokens()), keys_.size())
          : 0;
  if (place.epoch == TenantOf(place.tenant).epoch) {  // else it was erased since
    account.reuse.Use(keys_, use.user == User::kRequest ? asked : 0);
  }
  if (use.user == User::kOther || !account.lists.whole->hears_requests()) return;
  account.lists.whole->Begin({.time_ms = clock_.NowMicros() / 1000,
                              .keys = keys_,
                              .prompt_tokens = use.prompt_tokens,
                              .output_tokens = use.output_tokens,
                              .asked_blocks = asked,
                              .hit_blocks = use.hit_blocks});
}

void Core::EndPlan(PlanState* plan) {
  if (plan == nullptr || plan->lease.slots_.empty()) return;
  const PathUse use = {.path = plan->path,
                       .prompt_tokens = plan->prompt_tokens,
                       .hit_blocks = plan->path.size(),
                       .user = User::kPlan};
  plan->lease.core_->EndUse(plan->place, use, plan->lease.slots_);
  Disarm(plan->lease);
}

void Core::Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us) {
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    const uint64_t now_us = clock_.NowMicros();
    for (const BlockId block : blocks) {
      BlockRecord& record = blocks_.at(block);
      const bool stands = record.retained_until_us > now_us;
      record.priority = stands ? std::max(record.priority, priority) : priority;
      record.retained_until_us = stands ? std::max(record.retained_until_us, until_us) : until_us;
    }
  });
}

// Puts a block into the list where it now belongs, as its most recent one if it was not there.
void Core::List(BlockId block) {
  BlockRecord& record = blocks_.at(block);
  Tenant& account = TenantOf(record.account);
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    const SlotId slot = record.slots[c];
    if (slot.is_none()) continue;
    const bool unheld = reaches_[c].windowed() && references(slot) == 1;
    if (record.leases == 0 || unheld) bytes += charges_[c];
  }
  const Listed wanted = record.leases == 0 ? Listed::kWhole
                        : bytes > 0        ? Listed::kParts
                                           : Listed::kNowhere;
  if (record.listed != wanted) {
    Unlist(block);
    if (wanted != Listed::kNowhere) {
      (wanted == Listed::kWhole ? account.lists.whole : account.lists.passed)
          ->Add(block, FactsOf(block));
      record.stamp = next_stamp_++;
    }
    record.listed = wanted;
    if (wanted == Listed::kWhole && account.options.ttl_us > 0) {
      account.lists.aging->Add(block, {});
      record.listed_us = clock_.NowMicros();
    }
  }
  account.evictable_bytes += bytes - record.listed_bytes;
  record.listed_bytes = bytes;
}

void Core::Unlist(BlockId block, Stays stays) {
  BlockRecord& record = blocks_.at(block);
  Tenant& account = TenantOf(record.account);
  if (record.listed == Listed::kWhole) {
    switch (stays) {
      case Stays::kYes: account.lists.whole->Remove(block); break;
      case Stays::kNo: account.lists.whole->Forget(block); break;
      case Stays::kEvicted: account.lists.whole->Evict(block); break;
    }
    if (account.options.ttl_us > 0) account.lists.aging->Remove(block);
  }
  if (record.listed == Listed::kParts) account.lists.passed->Remove(block);
  record.listed = Listed::kNowhere;
  account.evictable_bytes -= std::exchange(record.listed_bytes, 0);
}

}  // namespace cache
}  // namespace quire

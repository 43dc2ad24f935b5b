#include "cache/state/slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quire::cache {

Slots::Slots(const SlotClasses& classes, const CacheOptions& options, const Capacity& capacity)
    : classes_(classes),
      own_memory_(options.memory == nullptr ? MakeHostMemory(options.huge_pages) : nullptr),
      memory_(options.memory == nullptr ? *own_memory_ : *options.memory),
      ops_(options.ops == nullptr ? HostBlockOps() : *options.ops),
      capacity_(capacity) {}

// A device that failed has no operation under way either.
Slots::~Slots() { static_cast<void>(ops_.Synchronize()); }

Result<std::unique_ptr<Slots>> Slots::Create(SlotClasses& classes, const CacheOptions& options) {
  const Capacity now = classes.CapacityFor(options.hot_bytes);
  const Capacity most = classes.CapacityFor(std::max(options.hot_bytes, options.hot_bytes_max));
  std::unique_ptr<Slots> slots(new Slots(classes, options, now));
  for (uint32_t c = 0; c < classes.count(); ++c) {
    const bool sealed = classes.is_sealed(c);
    QUIRE_ASSIGN(slots->pools_[c],
                 pool::Pool::Create(
                     {.name = fmt::format("{}{}", sealed ? "sealed" : "open", classes.GroupOf(c)),
                      .slot_bytes = classes.slot_bytes(c),
                      .slots = now.slots[c],
                      .slots_max = most.slots[c],
                      .pieces = classes.pieces(c),
                      .placement = sealed ? options.placement : Placement::kFreeList},
                     slots->memory_));
    classes.PlaceArena(c, slots->pools_[c]->piece_stride_bytes());
  }
  return slots;
}

SlotPieces Slots::PiecesOf(SlotId slot) const {
  const pool::Pool& pool = PoolOf(slot);
  return {.count = pool.pieces(),
          .bytes = pool.slot_bytes() / pool.pieces(),
          .stride_bytes = pool.piece_stride_bytes()};
}

void Slots::TakeFree(PerClass<std::vector<SlotId>>& slots) {
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    // Each pool has as many slots as the budget can pay for.
    QUIRE_CHECK(pools_[c]->Allocate(slots[c]));
    for (SlotId& slot : slots[c]) slot = classes_.Global(c, slot);
  }
}

Result<void> Slots::TakeFreeRun(std::span<const SlotId> run, uint32_t count,
                                std::vector<SlotId>& added) {
  const auto before = static_cast<uint32_t>(run.size());
  pool::SlotRun whole;
  if (run.empty()) {
    QUIRE_ASSIGN(whole, pools_[0]->AllocateRun(count));
  } else {
    whole = {.first = run.front(), .count = before};
    QUIRE_TRY(pools_[0]->GrowRun(whole, before + count));
  }
  for (uint32_t i = before; i < whole.count; ++i) added.push_back(whole.slot(i));
  return {};
}

Result<void> Slots::Commit(const Capacity& to) {
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    auto committed = pools_[c]->CommitSlots(to.slots[c]);
    if (committed) continue;
    for (uint32_t before = 0; before < c; ++before) pools_[before]->GiveBackTail();
    return committed;
  }
  return {};
}

void Slots::SetCapacity(const Capacity& to) {
  capacity_ = to;
  for (uint32_t c = 0; c < classes_.count(); ++c) pools_[c]->SetSlots(to.slots[c]);
}

std::vector<SlotId> Slots::UsedBeyond(const Capacity& capacity) const {
  std::vector<SlotId> used;
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    for (const SlotId local : pools_[c]->UsedFrom(capacity.slots[c])) {
      used.push_back(classes_.Global(c, local));
    }
  }
  return used;
}

SlotId Slots::TakeFor(SlotId beyond) {
  const uint32_t c = classes_.ClassOf(beyond);
  SlotId local;
  QUIRE_CHECK(pools_[c]->Allocate({&local, 1}));
  const SlotId to = classes_.Global(c, local);
  QUIRE_CHECK(to.number() < beyond.number());  // so it has a writer's entry
  writers_.Claim(to, writers_.of(beyond));
  return to;
}

void Slots::ForgetWritersBeyondEnd() {
  for (uint32_t i = 0; i < writers_.end(); ++i) {
    const SlotId slot(i);
    if (writers_.of(slot).tenant.is_none() || !IsBeyondEnd(slot)) continue;
    // The pool zeroes the freed bytes in pages that stay, if the host can reach them.
    if (!memory_.host_accessible() && PoolOf(slot).pieces() > 1) Zero(slot);
    writers_.Forget(slot);
  }
}

void Slots::GiveBackTail() {
  const auto settle = [this] { static_cast<void>(ops_.Synchronize()); };
  for (uint32_t c = 0; c < classes_.count(); ++c) pools_[c]->GiveBackTail(settle);
}

uint64_t Slots::Trim() {
  // Operations under way on free slots still read them, or would take pages again.
  const auto settle = [this] { static_cast<void>(ops_.Synchronize()); };
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < classes_.count(); ++c) bytes += pools_[c]->Trim(settle);
  return bytes;
}

}  // namespace quire::cache

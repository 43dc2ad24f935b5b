// More slots, or fewer: the memory that is committed and given back, and the slots that are handed
// out.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "pool/pool.h"

namespace quire::pool {

Result<void> Pool::CommitSlots(uint32_t slots) {
  if (slots > options_.slots_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("pool {}: {} slots, but there is address space for {}", options_.name,
                            slots, options_.slots_max));
  }
  uint32_t from = 0;
  {
    MutexLock lock(mutex_);
    from = committed_;
  }
  if (slots <= from) return {};
  const uint64_t begin_bytes = from * slot_stride_bytes_;
  const uint64_t bytes = (slots - from) * slot_stride_bytes_;
  for (uint32_t piece = 0; piece < options_.pieces; ++piece) {
    std::byte* const begin = arena_.base() + piece * piece_stride_bytes_ + begin_bytes;
    if (auto committed = arena_.memory().Commit(begin, bytes); !committed) {
      Decommit(from, slots, piece);
      return Fail(committed.error().code,
                  fmt::format("pool {}: {} slots of {} bytes instead of {}: {}", options_.name,
                              slots, options_.slot_bytes, from, committed.error().message));
    }
  }
  MutexLock lock(mutex_);
  committed_ = slots;
  return {};
}

void Pool::SetSlots(uint32_t slots) {
  MutexLock lock(mutex_);
  QUIRE_CHECK(slots <= committed_);
  if (slots > slots_now_) {
    QUIRE_CHECK_MSG(used_ == slots_now_ - free_count_,
                    fmt::format("pool {}: slots beyond {} are in use", options_.name, slots_now_));
    placer_->AddTail(slots_now_, slots);
    free_count_ += slots - slots_now_;
  } else if (slots < slots_now_) {
    const std::vector<SlotRun> runs = FreeRunsBeyond(slots);
    placer_->DropTail(slots, runs);
    for (const SlotRun run : runs) {
      free_count_ -= run.count - (slots - std::min(slots, run.first.number()));
    }
  }
  slots_now_ = slots;
  used_peak_ = used_;
}

// The free runs, each as long as it can be, that have a slot from `end` on.
std::vector<SlotRun> Pool::FreeRunsBeyond(uint32_t end) const {
  const auto is_free = [this](uint32_t slot) QUIRE_REQUIRES(mutex_) {
    return slot >= used_end_ || slots_[slot].references == 0;
  };
  // Slots that were never used are free and need no check.
  uint32_t first = std::min(end, used_end_);
  while (first > 0 && is_free(first - 1)) --first;
  std::vector<SlotRun> runs;
  for (uint32_t slot = first; slot < slots_now_;) {
    if (!is_free(slot)) {
      first = ++slot;
      continue;
    }
    while (slot < std::min(used_end_, slots_now_) && is_free(slot)) ++slot;
    if (slot >= used_end_) slot = slots_now_;
    if (slot > end) runs.push_back({.first = SlotId(first), .count = slot - first});
  }
  return runs;
}

std::vector<SlotId> Pool::UsedFrom(uint32_t first) const {
  std::vector<SlotId> used;
  MutexLock lock(mutex_);
  for (uint32_t slot = first; slot < used_end_; ++slot) {
    if (slots_[slot].references > 0) used.emplace_back(slot);
  }
  return used;
}

uint64_t Pool::GiveBackTail(const std::function<void()>& settle) {
  uint32_t from = 0;
  uint32_t to = 0;
  {
    MutexLock lock(mutex_);
    QUIRE_CHECK_MSG(used_ == slots_now_ - free_count_,
                    fmt::format("pool {}: slots beyond {} are in use", options_.name, slots_now_));
    from = slots_now_;
    to = committed_;
    for (uint32_t slot = from; slot < used_end_; ++slot) slots_[slot].may_be_resident = 0;
    used_end_ = std::min(used_end_, from);
    committed_ = from;
  }
  // These slots are not handed out before the next CommitSlots, so this needs no lock.
  if (from < to && settle) settle();
  if (from < to) Decommit(from, to, options_.pieces);
  return (to - from) * slot_stride_bytes_ * options_.pieces;
}

// In the first `pieces` pieces, of slots without holders. A page that one of them shares with
// slots that stay is zeroed as far as it is theirs.
void Pool::Decommit(uint32_t from, uint32_t to, uint32_t pieces) {
  const uint64_t begin_bytes = from * slot_stride_bytes_;
  const uint64_t end_bytes = RoundUp(to * slot_stride_bytes_, kSlotAlignment);
  const uint64_t page_bytes = RoundUp(begin_bytes, kSlotAlignment) - begin_bytes;
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    std::byte* const base = arena_.base() + piece * piece_stride_bytes_;
    if (page_bytes > 0 && arena_.memory().host_accessible()) {
      std::memset(base + begin_bytes, 0, page_bytes);
    }
    arena_.memory().Decommit(base + begin_bytes, end_bytes - begin_bytes);
  }
}

}  // namespace quire::pool

// The paged placement: any free slot, at once.
#ifndef QUIRE_POOL_FREE_LIST_H_
#define QUIRE_POOL_FREE_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "pool/placement.h"
#include "quire/identity.h"

namespace quire::pool {

/// Freed slots come back last in, first out: the last one's pages are resident and its bytes may
/// still be in a CPU cache. Only when none is left, slots never used before follow in ascending
/// order, so that neither their pages nor their place in `next` is touched before that.
///
/// It has no runs: to find free neighbours in a list it would have to search all of it.
///
/// Lifetime: borrows the memory
/// Cost:     O(1) per slot
class FreeList final : public Placer {
 public:
  static uint64_t Bytes(uint32_t slots_max) { return uint64_t{slots_max} * sizeof(uint32_t); }

  /// Shape: memory [Bytes(slots_max)], any contents
  FreeList(std::byte* memory, uint32_t slots_max)
      : next_(reinterpret_cast<uint32_t*>(memory)), end_(slots_max) {}

  void Take(std::span<SlotId> out) override {
    const size_t freed = std::min<size_t>(out.size(), freed_count_);
    uint32_t head = head_;  // a local: `out` could alias the member, and every step would store it
    for (SlotId& slot : out.first(freed)) {
      slot = SlotId(head);
      head = next_[head];
    }
    head_ = head;
    freed_count_ -= static_cast<uint32_t>(freed);
    QUIRE_DCHECK(out.size() - freed <= end_ - first_unused_);
    for (SlotId& slot : out.subspan(freed)) slot = SlotId(first_unused_++);
  }

  /// The run's first slot is the next one to go.
  void Put(SlotRun run) override {
    for (uint32_t i = run.count; i-- > 0;) {
      const uint32_t slot = run.slot(i).number();
      next_[slot] = head_;
      head_ = slot;
    }
    freed_count_ += run.count;
  }

  void AddTail(uint32_t /*from*/, uint32_t to) override { end_ = to; }

  /// What stays in the list keeps its order.
  ///
  /// Cost: O(freed slots)
  void DropTail(uint32_t end, std::span<const SlotRun> /*runs*/) override {
    uint32_t* link = &head_;
    uint32_t kept = 0;
    uint32_t slot = head_;
    for (uint32_t left = freed_count_; left > 0; --left) {
      const uint32_t before = next_[slot];
      if (slot < end) {
        *link = slot;
        link = &next_[slot];
        ++kept;
      }
      slot = before;
    }
    freed_count_ = kept;
    first_unused_ = std::min(first_unused_, end);
    end_ = end;
  }

 private:
  uint32_t* const next_;  // [slots_max]; of a freed slot, the one freed before it
  uint32_t end_;          // there are no slots from here on
  uint32_t head_ = 0;     // the slot freed last, when freed_count_ > 0
  uint32_t freed_count_ = 0;
  uint32_t first_unused_ = 0;  // the slots from this number on were never handed out
};

}  // namespace quire::pool

#endif  // QUIRE_POOL_FREE_LIST_H_

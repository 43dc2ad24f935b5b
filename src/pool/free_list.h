// Which slot is handed out next: the paged placement. Counts and locks are the pool's.
#ifndef QUIRE_POOL_FREE_LIST_H_
#define QUIRE_POOL_FREE_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/ids.h"

namespace quire::pool {

/// Freed slots come back last in, first out: the last one's pages are resident and its bytes may
/// still be in a CPU cache. Only when none is left, slots never used before follow in ascending
/// order, so that neither their pages nor their place in `next` is touched before that.
///
/// Threads:  none
/// Lifetime: borrows `next`
/// Cost:     O(1) per slot
class FreeList {
 public:
  /// Shape: next [slots_max], any contents
  FreeList(uint32_t* next, uint32_t slots_max) : next_(next), slots_max_(slots_max) {}

  uint32_t free_count() const { return freed_count_ + (slots_max_ - first_unused_); }
  /// The slots from this number on were never handed out.
  uint32_t first_unused() const { return first_unused_; }

  /// Needs out.size() <= free_count().
  void Take(std::span<SlotId> out) {
    const size_t freed = std::min<size_t>(out.size(), freed_count_);
    uint32_t head = head_;  // a local: `out` could alias the member, and every step would store it
    for (SlotId& slot : out.first(freed)) {
      slot = SlotId(head);
      head = next_[head];
    }
    head_ = head;
    freed_count_ -= static_cast<uint32_t>(freed);
    for (SlotId& slot : out.subspan(freed)) slot = SlotId(first_unused_++);
  }

  /// Needs a slot that is taken.
  void Put(SlotId slot) {
    next_[slot.number()] = head_;
    head_ = slot.number();
    ++freed_count_;
  }

 private:
  uint32_t* const next_;  // [slots_max]; of a freed slot, the one freed before it
  const uint32_t slots_max_;
  uint32_t head_ = 0;  // the slot freed last, when freed_count_ > 0
  uint32_t freed_count_ = 0;
  uint32_t first_unused_ = 0;
};

}  // namespace quire::pool

#endif  // QUIRE_POOL_FREE_LIST_H_

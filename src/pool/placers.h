// The placements: any free slot, first fit, best fit and buddy.
#ifndef QUIRE_POOL_PLACERS_H_
#define QUIRE_POOL_PLACERS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/check.h"
#include "pool/placement.h"
#include "pool/slot_set.h"
#include "quire/identity.h"

namespace quire::pool {

/// The paged placement: any free slot, at once.
///
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

/// First fit: the lowest free slots, so that used slots stay together at the bottom.
///
/// A bitmap of the free slots.
///
/// Lifetime: borrows the memory
/// Cost:     a slot O(log64 slots_max); to find a run, O(words with a free slot)
class FirstFit final : public RunPlacer {
 public:
  static uint64_t Bytes(uint32_t slots_max) { return SlotSet::Bytes(slots_max); }

  /// Shape: memory [Bytes(slots_max)], zero, aligned to 8
  FirstFit(std::byte* memory, uint32_t slots_max)
      : free_(memory, slots_max, SlotSet::Start::kFull) {}

  void Take(std::span<SlotId> out) override {
    uint32_t from = 0;
    for (SlotId& slot : out) {
      from = free_.First(from);
      free_.Erase(from);
      slot = SlotId(from);
    }
  }

  void Put(SlotRun run) override {
    for (uint32_t i = 0; i < run.count; ++i) free_.Insert(run.slot(i).number());
  }

  std::optional<SlotRun> TakeRun(uint32_t count) override {
    const uint32_t first = free_.FirstRun(count);
    if (first == free_.universe()) return std::nullopt;
    const SlotRun run = {.first = SlotId(first), .count = count};
    TakeAt(run);
    return run;
  }

  void TakeAt(SlotRun run) override {
    for (uint32_t i = 0; i < run.count; ++i) free_.Erase(run.slot(i).number());
  }

 private:
  SlotSet free_;
};

/// Best fit: the shortest free run that is long enough, so that long ones stay whole.
///
/// The free runs, each as long as it can be, in a search tree ordered by (length, first slot). A
/// run keeps its node in the metadata of its first slot, so nothing is ever allocated; its length
/// also stands at its last slot, where a neighbour that becomes free finds it.
///
/// The tree is a treap whose heap order is a hash of the first slot, so its shape follows from the
/// free runs alone, and its depth is that of a random tree.
///
/// Lifetime: borrows the memory
/// Cost:     O(log of the free runs) expected, for every run taken, grown or given back
/// Source:   Seidel and Aragon, Randomized search trees, Algorithmica 16 (1996)
class BestFit final : public RunPlacer {
 public:
  static uint64_t Bytes(uint32_t slots_max) { return uint64_t{slots_max} * 3 * sizeof(uint32_t); }

  /// Shape: memory [Bytes(slots_max)], zero, aligned to 4
  BestFit(std::byte* memory, uint32_t slots_max);

  void Take(std::span<SlotId> out) override;
  void Put(SlotRun run) override;
  std::optional<SlotRun> TakeRun(uint32_t count) override;
  void TakeAt(SlotRun run) override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  bool Before(uint32_t a, uint32_t b) const {
    return lengths_[a] != lengths_[b] ? lengths_[a] < lengths_[b] : a < b;
  }
  uint32_t FirstOfAtLeast(uint32_t count) const;
  void Link(uint32_t first, uint32_t length);
  uint32_t Unlink(uint32_t first);
  void TakeFront(uint32_t first, uint32_t count);

  const uint32_t slots_max_;
  uint32_t* const lengths_;  // [slots_max]; at a free run's first and last slot its length, else 0
  uint32_t* const left_;     // [slots_max]; at a free run's first slot: the runs before it
  uint32_t* const right_;    // [slots_max]; the runs behind it
  uint32_t root_ = kNone;
};

/// Buddy: free blocks of aligned powers of two that split and merge.
///
/// A block of order k is 2^k slots from a multiple of 2^k on. Free blocks are as large as they can
/// be: two halves that are free merge at once. So the free blocks follow from the free slots alone,
/// and slots_max need not be a power of two: the blocks of its binary digits are there at first.
///
/// A run is cut from the start of the lowest block of the smallest order that holds it; the rest of
/// that block stays free, so that a run never holds more than it asked for.
///
/// Lifetime: borrows the memory
/// Cost:     O(log slots_max) to take a run or to give a slot back; O(log^2) to grow in place
/// Source:   Knuth, The Art of Computer Programming 1, 2.5
class Buddy final : public RunPlacer {
 public:
  static uint64_t Bytes(uint32_t slots_max);

  /// Shape: memory [Bytes(slots_max)], zero, aligned to 8
  Buddy(std::byte* memory, uint32_t slots_max);

  void Take(std::span<SlotId> out) override;
  void Put(SlotRun run) override { PutRange(run.first.number(), End(run)); }
  std::optional<SlotRun> TakeRun(uint32_t count) override;
  void TakeAt(SlotRun run) override;

 private:
  static constexpr uint32_t kOrders = 32;

  static uint64_t End(SlotRun run) { return uint64_t{run.first.number()} + run.count; }
  uint32_t OrderOfFreeBlockAround(uint32_t slot) const;
  void TakeBlock(uint32_t order, uint32_t number);
  void PutBlock(uint32_t order, uint32_t number);
  void PutRange(uint64_t begin, uint64_t end);

  std::array<SlotSet, kOrders> free_;  // by order: the numbers of free blocks; block i is at i 2^k
  uint64_t orders_ = 0;                // bit k: some block of order k is free
};

}  // namespace quire::pool

#endif  // QUIRE_POOL_PLACERS_H_

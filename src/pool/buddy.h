// Buddy: free blocks of aligned powers of two that split and merge.
#ifndef QUIRE_POOL_BUDDY_H_
#define QUIRE_POOL_BUDDY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "pool/placement.h"
#include "pool/slot_set.h"
#include "quire/identity.h"

namespace quire::pool {

/// A block of order k is 2^k slots from a multiple of 2^k on. Free blocks are as large as they can
/// be: two halves that are free merge at once. So the free blocks follow from the free slots alone,
/// and slots_max need not be a power of two: the blocks of its binary digits are there at first.
///
/// A run is cut from the front of the lowest block of the smallest order that holds it; the rest of
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

#endif  // QUIRE_POOL_BUDDY_H_

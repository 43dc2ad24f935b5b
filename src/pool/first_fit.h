// First fit: the lowest free slots, so that what is used stays together at the bottom.
#ifndef QUIRE_POOL_FIRST_FIT_H_
#define QUIRE_POOL_FIRST_FIT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "pool/placement.h"
#include "pool/slot_set.h"
#include "quire/identity.h"

namespace quire::pool {

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

}  // namespace quire::pool

#endif  // QUIRE_POOL_FIRST_FIT_H_

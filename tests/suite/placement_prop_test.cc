// Every placement in lock step with a vector of free slots and a plain search over it.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/pool.h"
#include "tests/suite/placement_models.h"

namespace quire::pool {
namespace {

constexpr uint32_t kSlotsMaxMax = 300;

template <typename Model>
class LockStep {
 public:
  LockStep(uint32_t slots, uint32_t slots_max)
      : pool_(Pool::Create({.name = "p",
                            .slot_bytes = 64,
                            .slots = slots,
                            .slots_max = slots_max,
                            .placement = Model::kPlacement},
                           *memory_)
                  .value()),
        free_(slots, true),
        references_(slots_max),
        generations_(slots_max) {}

  void Step() {
    switch (
        *rc::gen::weightedElement<int>({{6, 0}, {6, 1}, {4, 2}, {3, 3}, {5, 4}, {8, 5}, {2, 6}})) {
      case 0: AllocateSlots(); break;
      case 1: AllocateRun(); break;
      case 2: Grow(); break;
      case 3: Shrink(); break;
      case 4: ReleaseRun(); break;
      case 5: ReleaseOrRetainASlot(); break;
      default: Resize();
    }
    Compare();
  }

  void GiveAllBack() {
    for (uint32_t slot = 0; slot < references_.size(); ++slot) {
      while (references_[slot] > 0) Drop(slot, pool_->Release(SlotId(slot)));
    }
    Compare();
    pool_->GiveBackTail();
    if constexpr (Model::kHasRuns) {
      // All merged again: what a whole pool can give, this one can.
      const bool expected = Model::Expected(free_, slots()).has_value();
      RC_ASSERT(pool_->AllocateRun(slots()).has_value() == expected);
    }
  }

 private:
  uint32_t slots() const { return static_cast<uint32_t>(free_.size()); }
  bool UsedBeyond() const {
    return std::any_of(references_.begin() + slots(), references_.end(),
                       [](uint32_t count) { return count > 0; });
  }
  uint32_t free_count() const {
    return static_cast<uint32_t>(std::count(free_.begin(), free_.end(), true));
  }
  void Take(uint32_t slot) {
    RC_ASSERT(free_[slot]);
    free_[slot] = false;
    references_[slot] = 1;
  }
  void Drop(uint32_t slot, bool freed) {
    RC_ASSERT(freed == (--references_[slot] == 0));
    if (!freed) return;
    if (slot < slots()) free_[slot] = true;
    ++generations_[slot];
  }
  uint32_t DropRun(SlotRun run) {
    uint32_t freed = 0;
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t slot = run.slot(i).number();
      const bool last = references_[slot] == 1;
      Drop(slot, last);
      freed += last ? 1 : 0;
    }
    return freed;
  }
  // The runs whose slots are all still used, which is what a caller may pass on.
  std::optional<size_t> AnyWholeRun() {
    std::erase_if(runs_, [this](SlotRun run) {
      for (uint32_t i = 0; i < run.count; ++i) {
        if (references_[run.slot(i).number()] == 0) return true;
      }
      return run.count == 0;
    });
    if (runs_.empty()) return std::nullopt;
    return *rc::gen::inRange<size_t>(0, runs_.size());
  }

  void AllocateSlots() {
    const auto count = *rc::gen::inRange<uint32_t>(0, 9);
    std::vector<SlotId> slots(count);
    const bool allocated = pool_->Allocate(slots);
    RC_ASSERT(allocated == (count <= free_count()));
    if (!allocated) return;
    for (const SlotId slot : slots) {
      if constexpr (Model::kHasRuns) RC_ASSERT(slot.number() == *Model::Expected(free_, 1));
      Take(slot.number());
    }
  }

  void AllocateRun() {
    const auto count =
        *rc::gen::weightedOneOf<uint32_t>({{5, rc::gen::inRange<uint32_t>(1, 12)},
                                           {1, rc::gen::inRange<uint32_t>(1, kSlotsMaxMax + 10)}});
    const auto run = pool_->AllocateRun(count);
    if constexpr (Model::kHasRuns) {
      const std::optional<uint32_t> expected = Model::Expected(free_, count);
      RC_ASSERT(run.has_value() == expected.has_value());
      if (!run) return;
      RC_ASSERT(run->first.number() == *expected);
      RC_ASSERT(run->count == count);
      for (uint32_t i = 0; i < count; ++i) Take(run->slot(i).number());
      runs_.push_back(*run);
    } else {
      RC_ASSERT(run.error().code == ErrorCode::kUnsupported);
    }
  }

  void Grow() {
    const auto chosen = AnyWholeRun();
    if (!chosen) return;
    SlotRun& run = runs_[*chosen];
    const SlotRun before = run;
    const uint32_t count = run.count + *rc::gen::inRange<uint32_t>(0, 20);
    if (count == run.count) return;  // fits anywhere
    bool fits = run.first.number() + count <= slots();
    for (uint32_t i = run.count; fits && i < count; ++i) fits = free_[run.slot(i).number()];
    RC_ASSERT(pool_->GrowRun(run, count).has_value() == fits);
    RC_ASSERT(run == (fits ? SlotRun{.first = before.first, .count = count} : before));
    for (uint32_t i = before.count; i < run.count; ++i) Take(run.slot(i).number());
  }

  void Shrink() {
    const auto chosen = AnyWholeRun();
    if (!chosen) return;
    SlotRun& run = runs_[*chosen];
    const auto count = *rc::gen::inRange<uint32_t>(0, run.count + 1);
    const SlotRun dropped = {.first = run.slot(count), .count = run.count - count};
    const uint32_t freed = pool_->ShrinkRun(run, count);
    RC_ASSERT(run.count == count);
    RC_ASSERT(freed == DropRun(dropped));
  }

  void ReleaseRun() {
    const auto chosen = AnyWholeRun();
    if (!chosen) return;
    const uint32_t freed = pool_->ReleaseRun(runs_[*chosen]);
    RC_ASSERT(freed == DropRun(runs_[*chosen]));
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(*chosen));
  }

  void ReleaseOrRetainASlot() {
    const auto slot = *rc::gen::inRange<size_t>(0, references_.size());
    if (references_[slot] == 0) return;
    if (*rc::gen::inRange(0, 4) == 0) {
      pool_->Retain(SlotId(static_cast<uint32_t>(slot)));
      ++references_[slot];
    } else {
      Drop(static_cast<uint32_t>(slot), pool_->Release(SlotId(static_cast<uint32_t>(slot))));
    }
  }

  // Slots in use beyond the end stay, and the pool grows again only when they are gone.
  void Resize() {
    const auto count =
        *rc::gen::inRange<uint32_t>(1, static_cast<uint32_t>(references_.size()) + 1);
    if (count > slots() && UsedBeyond()) return;
    RC_ASSERT(pool_->CommitSlots(count).has_value());
    pool_->SetSlots(count);
    free_.resize(count, true);
    if (!UsedBeyond()) pool_->GiveBackTail();
    for (uint32_t slot = 0; slot < count; ++slot) {
      if (free_[slot]) *pool_->data(SlotId(slot)) = std::byte{1};  // may be used
    }
  }

  void Compare() const {
    RC_ASSERT(pool_->free_count() == free_count());
    const std::vector<SlotRun> runs = RunsOf(free_);
    const FreeRuns found = pool_->free_runs();
    uint32_t largest = 0;
    for (const SlotRun& run : runs) largest = std::max(largest, run.count);
    RC_ASSERT(found.free_slots == free_count());
    RC_ASSERT(found.runs == runs.size());
    RC_ASSERT(found.largest == largest);
    std::string map;
    uint32_t used = 0;
    std::vector<SlotId> used_beyond;
    for (uint32_t slot = 0; slot < references_.size(); ++slot) {
      RC_ASSERT(pool_->references(SlotId(slot)) == references_[slot]);
      RC_ASSERT(pool_->generation(SlotId(slot)) == generations_[slot]);
      used += references_[slot] > 0 ? 1 : 0;
      if (slot < slots()) map += free_[slot] ? '.' : 'x';
      if (slot >= slots() && references_[slot] > 0) used_beyond.emplace_back(slot);
    }
    RC_ASSERT(pool_->stats().slots_used == used);
    RC_ASSERT(pool_->stats().slots_max == slots());
    RC_ASSERT(pool_->UsedFrom(slots()) == used_beyond);
    RC_ASSERT(pool_->Map([](SlotId, uint32_t) { return 'x'; }, slots()).find(map) !=
              std::string::npos);
  }

  const std::unique_ptr<DeviceMemory> memory_ = MakeHostMemory(false);
  const std::unique_ptr<Pool> pool_;
  std::vector<bool> free_;             // by slot, of those that there are now
  std::vector<uint32_t> references_;   // by slot
  std::vector<uint32_t> generations_;  // by slot
  std::vector<SlotRun> runs_;          // taken and perhaps not yet given back
};

template <typename Model>
void EqualsTheModel() {
  const auto slots_max = *rc::gen::inRange<uint32_t>(1, kSlotsMaxMax);
  LockStep<Model> lock_step(*rc::gen::inRange<uint32_t>(1, slots_max + 1), slots_max);
  const auto steps = *rc::gen::inRange(1, 150);
  for (int step = 0; step < steps; ++step) lock_step.Step();
  lock_step.GiveAllBack();
}

RC_GTEST_PROP(PlacementProperty, FreeListEqualsTheModel, ()) { EqualsTheModel<FreeListModel>(); }
RC_GTEST_PROP(PlacementProperty, FirstFitEqualsTheModel, ()) { EqualsTheModel<FirstFitModel>(); }
RC_GTEST_PROP(PlacementProperty, BestFitEqualsTheModel, ()) { EqualsTheModel<BestFitModel>(); }
RC_GTEST_PROP(PlacementProperty, BuddyEqualsTheModel, ()) { EqualsTheModel<BuddyModel>(); }

}  // namespace
}  // namespace quire::pool

// Every placement as what it promises: a plain search over a vector of free slots. To put a new
// placement under the suite, write one of these and add it to the list at the end.
#ifndef QUIRE_TESTS_SUITE_PLACEMENT_MODELS_H_
#define QUIRE_TESTS_SUITE_PLACEMENT_MODELS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "pool/placement.h"

namespace quire::pool {

/// The maximal runs of free slots, in ascending order.
inline std::vector<SlotRun> RunsOf(const std::vector<bool>& free) {
  std::vector<SlotRun> runs;
  for (uint32_t slot = 0; slot < free.size(); ++slot) {
    if (!free[slot]) continue;
    if (slot == 0 || !free[slot - 1]) runs.push_back({.first = SlotId(slot), .count = 0});
    ++runs.back().count;
  }
  return runs;
}

// Each says where the next `count` consecutive slots come from; nothing: there are none.

struct FreeListModel {
  static constexpr Placement kPlacement = Placement::kFreeList;
  static constexpr bool kHasRuns = false;
};

struct FirstFitModel {
  static constexpr Placement kPlacement = Placement::kFirstFit;
  static constexpr bool kHasRuns = true;
  static std::optional<uint32_t> Expected(const std::vector<bool>& free, uint32_t count) {
    for (const SlotRun& run : RunsOf(free)) {
      if (run.count >= count) return run.first.number();
    }
    return std::nullopt;
  }
};

struct BestFitModel {
  static constexpr Placement kPlacement = Placement::kBestFit;
  static constexpr bool kHasRuns = true;
  static std::optional<uint32_t> Expected(const std::vector<bool>& free, uint32_t count) {
    std::optional<SlotRun> best;
    for (const SlotRun& run : RunsOf(free)) {
      if (run.count >= count && (!best || run.count < best->count)) best = run;
    }
    return best ? std::optional(best->first.number()) : std::nullopt;
  }
};

struct BuddyModel {
  static constexpr Placement kPlacement = Placement::kBuddy;
  static constexpr bool kHasRuns = true;

  // Whether the aligned block is free but its parent is not, or is no block of this pool.
  static bool IsFreeBlock(const std::vector<bool>& free, uint64_t begin, uint64_t size) {
    const auto all_free = [&free](uint64_t from, uint64_t slots) {
      return from + slots <= free.size() &&
             std::all_of(free.begin() + static_cast<std::ptrdiff_t>(from),
                         free.begin() + static_cast<std::ptrdiff_t>(from + slots),
                         [](bool slot) { return slot; });
    };
    return all_free(begin, size) && !all_free(begin / (2 * size) * (2 * size), 2 * size);
  }

  static std::optional<uint32_t> Expected(const std::vector<bool>& free, uint32_t count) {
    for (uint64_t size = std::bit_ceil(uint64_t{count}); size <= free.size(); size *= 2) {
      for (uint64_t begin = 0; begin < free.size(); begin += size) {
        if (IsFreeBlock(free, begin, size)) return static_cast<uint32_t>(begin);
      }
    }
    return std::nullopt;
  }
};

using PlacementModels = testing::Types<FreeListModel, FirstFitModel, BestFitModel, BuddyModel>;

}  // namespace quire::pool

#endif  // QUIRE_TESTS_SUITE_PLACEMENT_MODELS_H_

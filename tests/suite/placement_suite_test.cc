// What every placement must do, seen through the pool (SPEC M4).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "env/faulty_memory.h"
#include "env/machine.h"
#include "pool/pool.h"
#include "tests/suite/placement_models.h"

namespace quire::pool {
namespace {

template <typename Model>
class PlacementSuite : public testing::Test {
 protected:
  static constexpr bool kHasRuns = Model::kHasRuns;

  std::unique_ptr<Pool> Make(uint32_t slots_max, uint64_t slot_bytes = 4096) {
    return Pool::Create({.name = "test",
                         .slot_bytes = slot_bytes,
                         .slots_max = slots_max,
                         .placement = Model::kPlacement},
                        *memory_)
        .value();
  }

  const std::unique_ptr<DeviceMemory> memory_ = MakeHostMemory(false);
};

template <typename Model>
using PlacementSuiteDeathTest = PlacementSuite<Model>;

class ModelName {
 public:
  template <typename Model>
  static std::string GetName(int) {
    return std::string(PlacementName(Model::kPlacement));
  }
};

TYPED_TEST_SUITE(PlacementSuite, PlacementModels, ModelName);
TYPED_TEST_SUITE(PlacementSuiteDeathTest, PlacementModels, ModelName);

TYPED_TEST(PlacementSuite, EverySlotCanBeHadOnceAndComesBack) {
  for (const uint32_t slots_max : {1u, 2u, 63u, 64u, 65u, 100u, 4097u}) {
    const auto pool = this->Make(slots_max);
    for (int round = 0; round < 3; ++round) {
      std::vector<SlotId> slots(slots_max);
      ASSERT_TRUE(pool->Allocate(slots));
      EXPECT_EQ(pool->free_count(), 0u);
      EXPECT_EQ(pool->free_runs().runs, 0u);
      EXPECT_EQ(pool->free_runs().fragmentation(), 0.0);
      SlotId one;
      EXPECT_FALSE(pool->Allocate({&one, 1}));
      std::ranges::sort(slots);
      for (uint32_t i = 0; i < slots_max; ++i) ASSERT_EQ(slots[i], SlotId(i));
      for (uint32_t i = 0; i < slots_max; ++i) {
        EXPECT_TRUE(pool->Release(slots[(i * 7919ull) % slots_max]) || slots_max % 7919 == 0);
      }
      EXPECT_EQ(pool->free_count(), slots_max);
      EXPECT_EQ(pool->free_runs().largest, slots_max);
    }
  }
}

TYPED_TEST(PlacementSuite, AllocateIsAllOrNothing) {
  const auto pool = this->Make(10);
  std::vector<SlotId> slots(8);
  ASSERT_TRUE(pool->Allocate(slots));
  std::vector<SlotId> three(3, SlotId(77));
  EXPECT_FALSE(pool->Allocate(three));
  EXPECT_EQ(three, std::vector<SlotId>(3, SlotId(77)));
  EXPECT_EQ(pool->free_count(), 2u);
  EXPECT_EQ(pool->stats().slots_used_peak, 8u);
}

TYPED_TEST(PlacementSuite, RunsAreConsecutiveOrUnsupported) {
  const auto pool = this->Make(100);
  auto run = pool->AllocateRun(10);
  if (!this->kHasRuns) {
    ASSERT_FALSE(run);
    EXPECT_EQ(run.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(run.error().message, "pool test: placement free_list has no runs");
    SlotRun one = {.first = SlotId(0), .count = 1};
    EXPECT_EQ(pool->GrowRun(one, 2).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(pool->free_count(), 100u);
    return;
  }
  ASSERT_TRUE(run);
  EXPECT_EQ(run->count, 10u);
  EXPECT_EQ(pool->free_count(), 90u);
  std::memset(pool->data(run->first), 7, 10 * pool->slot_stride_bytes());
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(pool->references(run->slot(i)), 1u);
    EXPECT_EQ(*pool->data(run->slot(i)), std::byte{7});
  }
  EXPECT_EQ(pool->ReleaseRun(*run), 10u);
  EXPECT_EQ(pool->free_count(), 100u);
  EXPECT_EQ(pool->generation(run->slot(9)), 1u);
  EXPECT_EQ(pool->Trim(), 10 * pool->slot_stride_bytes());
}

TYPED_TEST(PlacementSuite, ARunIsAllOrNothing) {
  if (!this->kHasRuns) return;
  const auto pool = this->Make(64);
  EXPECT_EQ(pool->AllocateRun(0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(pool->AllocateRun(65).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(pool->AllocateRun(UINT32_MAX).error().code, ErrorCode::kNoSpace);
  std::vector<SlotId> slots(64);
  ASSERT_TRUE(pool->Allocate(slots));
  for (uint32_t slot = 0; slot < 64; slot += 2) pool->Release(SlotId(slot));
  const auto run = pool->AllocateRun(2);
  ASSERT_FALSE(run) << "half is free, but no two neighbours";
  EXPECT_EQ(run.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(run.error().message.find("no run of 2 slots; 32 of 64 are free"), std::string::npos)
      << run.error().message;
  EXPECT_EQ(pool->free_count(), 32u);
  EXPECT_EQ(pool->stats().slots_used_peak, 64u);
  EXPECT_TRUE(pool->AllocateRun(1));
}

TYPED_TEST(PlacementSuite, ARunGrowsAndShrinksInPlace) {
  if (!this->kHasRuns) return;
  const auto pool = this->Make(100);
  SlotRun run = pool->AllocateRun(50).value();
  EXPECT_EQ(pool->ShrinkRun(run, 3), 47u);
  const std::byte* const data = pool->data(run.first);
  ASSERT_TRUE(pool->GrowRun(run, 50));
  EXPECT_EQ(run.count, 50u);
  EXPECT_EQ(pool->data(run.first), data);
  EXPECT_EQ(pool->free_count(), 50u);
  EXPECT_TRUE(pool->GrowRun(run, 50)) << "to what it is";
  EXPECT_EQ(pool->GrowRun(run, 49).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(pool->GrowRun(run, 101).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(pool->GrowRun(run, UINT32_MAX).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(run.count, 50u);

  EXPECT_EQ(pool->ShrinkRun(run, 5), 45u);
  EXPECT_EQ(run.count, 5u);
  std::vector<SlotId> rest(95);
  ASSERT_TRUE(pool->Allocate(rest));
  pool->Release(SlotId(run.slot(5)));
  const auto grown = pool->GrowRun(run, 7);
  ASSERT_FALSE(grown);
  EXPECT_EQ(grown.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(grown.error().message.find("slot 6 is in use"), std::string::npos)
      << grown.error().message;
  EXPECT_EQ(run.count, 5u);
  EXPECT_EQ(pool->free_count(), 1u) << "a part is not taken";
  EXPECT_TRUE(pool->GrowRun(run, 6));
}

TYPED_TEST(PlacementSuite, SlotsOfARunGoAloneOrTogether) {
  if (!this->kHasRuns) return;
  const auto pool = this->Make(40);
  const SlotRun run = pool->AllocateRun(8).value();
  pool->Retain(run.slot(2));
  pool->Retain(run.slot(5));
  EXPECT_EQ(pool->ReleaseRun(run), 6u) << "two are held by others";
  EXPECT_EQ(pool->free_count(), 38u);
  EXPECT_EQ(pool->free_runs().runs, 3u);
  EXPECT_TRUE(pool->Release(run.slot(5)));
  EXPECT_TRUE(pool->Release(run.slot(2)));
  EXPECT_EQ(pool->free_runs().largest, 40u) << "all merged again";
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(pool->generation(run.slot(i)), 1u);
}

TYPED_TEST(PlacementSuite, FreeRunsAreCountedWhereverTheyLie) {
  const auto pool = this->Make(100);
  EXPECT_EQ(pool->free_runs().largest, 100u);
  EXPECT_EQ(pool->free_runs().runs, 1u);
  std::vector<SlotId> slots(100);
  ASSERT_TRUE(pool->Allocate(slots));
  for (const uint32_t slot : {0u, 1u, 10u, 11u, 12u, 13u, 50u, 99u}) pool->Release(SlotId(slot));
  const FreeRuns runs = pool->free_runs();
  EXPECT_EQ(runs.free_slots, 8u);
  EXPECT_EQ(runs.runs, 4u);
  EXPECT_EQ(runs.largest, 4u);
  EXPECT_DOUBLE_EQ(runs.fragmentation(), 0.5);
}

TYPED_TEST(PlacementSuite, MetadataIsNotTouchedBeforeUse) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "ThreadSanitizer's shadow is resident too";
  const uint64_t before = ResidentBytes().value();
  const auto pool = this->Make(64'000'000);
  std::vector<SlotId> slots(100);
  ASSERT_TRUE(pool->Allocate(slots));
  if (this->kHasRuns) pool->ReleaseRun(pool->AllocateRun(1000).value());
  for (const SlotId slot : slots) pool->Release(slot);
  EXPECT_EQ(pool->free_count(), 64'000'000u);
  EXPECT_LT(ResidentBytes().value(), before + (2 << 20));
}

TYPED_TEST(PlacementSuite, MetadataIsWhatIsCharged) {
  for (const uint32_t slots_max : {1000u, 4096u, 1'000'003u}) {
    const uint64_t of_slots = 12;  // references, generation, residency
    EXPECT_LE(PlacerBytes(TypeParam::kPlacement, slots_max),
              (Pool::MetadataBytesPerSlot(TypeParam::kPlacement) - of_slots) * slots_max);
  }
}

TYPED_TEST(PlacementSuite, FailureSweep) {
  for (uint64_t k = 0;; ++k) {
    FaultyMemory faulty(*this->memory_, k);
    {
      const auto pool = Pool::Create(
          {.name = "p", .slot_bytes = 10, .slots_max = 500, .placement = TypeParam::kPlacement},
          faulty);
      EXPECT_EQ(pool.has_value(), !faulty.failed());
    }
    EXPECT_EQ(faulty.reserved_bytes(), 0u) << "reservation " << k;
    if (!faulty.failed()) break;
  }
}

TYPED_TEST(PlacementSuiteDeathTest, FreeingTwiceIsABug) {
  const auto pool = this->Make(30);
  std::vector<SlotId> slots(29);
  ASSERT_TRUE(pool->Allocate(slots));
  pool->Release(slots[3]);
  EXPECT_DEATH(pool->Release(slots[3]), "pool test: slot .* of 30 is free");
  EXPECT_DEATH(pool->Retain(slots[3]), "pool test: slot .* of 30 is free");
  uint32_t never_used = 0;
  while (never_used == slots[3].number() || pool->references(SlotId(never_used)) > 0) ++never_used;
  EXPECT_DEATH(pool->Release(SlotId(never_used)), "is free");
}

TYPED_TEST(PlacementSuiteDeathTest, ARunOfFreeSlotsIsABug) {
  const auto pool = this->Make(30);
  EXPECT_DEATH(pool->ReleaseRun({.first = SlotId(28), .count = 3}), "no run of 30");
  EXPECT_DEATH(pool->ReleaseRun({.first = SlotId(30), .count = 1}), "no run of 30");
  EXPECT_DEATH(pool->ReleaseRun({.first = SlotId(0), .count = 2}), "slot 1 of 30 is free");
  if (!this->kHasRuns) return;
  SlotRun run = pool->AllocateRun(5).value();
  EXPECT_DEATH(pool->ShrinkRun(run, 6), "");
  pool->Release(run.slot(1));
  EXPECT_DEATH(pool->ReleaseRun(run), "pool test: slot .* of 30 is free");
  pool->Release(run.slot(4));
  EXPECT_DEATH((void)pool->GrowRun(run, 6), "pool test: slot .* of 30 is free");
}

}  // namespace
}  // namespace quire::pool

// Several caches on one budget.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cache/test_util.h"
#include "quire/cache.h"

namespace quire::cache {
namespace {

const NumericProfile kSharedBudgetF16 = NumericProfile::Uniform(Codec::kF16);

struct Caches {
  explicit Caches(uint64_t slots, uint64_t slots_max = 0)
      : budget(Bytes(slots), slots_max == 0 ? 0 : Bytes(slots_max)),
        first(Make(budget)),
        second(Make(budget)) {}

  static uint64_t Charge() { return ChargePerSlot(SmallGeometry(), kSharedBudgetF16); }
  /// For so many slots, not quite one more, and what sequences take besides.
  static uint64_t Bytes(uint64_t slots) { return (slots + 1) * Charge() - 1; }
  static std::unique_ptr<Cache> Make(SharedBudget& budget) {
    return Must(Cache::Create({.geometry = SmallGeometry(),
                               .profile = kSharedBudgetF16,
                               .hot_bytes = Bytes(10),
                               .shared_budget = &budget,
                               .tokens_max = 1 << 12}));
  }
  Result<std::unique_ptr<Sequence>> Fill(Cache& cache, uint64_t blocks, uint64_t seed) {
    const auto tokens = SomeTokens(blocks * kBlock, seed);
    const Identity identity = SomeIdentity();
    QUIRE_ASSIGN(auto plan, cache.Acquire({.identity = &identity, .tokens = tokens}));
    QUIRE_ASSIGN(auto sequence, cache.Open(std::move(plan), {}));
    QUIRE_TRY(model.Feed(*sequence, tokens));
    return sequence;
  }

  FakeModel model{SmallGeometry()};
  SharedBudget budget;
  std::unique_ptr<Cache> first;
  std::unique_ptr<Cache> second;
};

TEST(SharedBudget, WhatOneCacheHoldsTheOtherCannotHave) {
  Caches caches(12);
  EXPECT_EQ(caches.budget.used_bytes(), 0u);
  auto held = Must(caches.Fill(*caches.first, 8, 1));
  EXPECT_EQ(caches.budget.used_bytes() / Caches::Charge(), 8u);
  const auto refused = caches.Fill(*caches.second, 5, 2);
  ASSERT_FALSE(refused.has_value()) << "although it alone has room for 10";
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  auto other = Must(caches.Fill(*caches.second, 4, 3));
  EXPECT_EQ(caches.budget.used_bytes(),
            caches.first->stats().hot_bytes_used + caches.second->stats().hot_bytes_used);

  // Blocks that the first cache keeps stay charged until they are evicted there.
  held.reset();
  EXPECT_FALSE(caches.Fill(*caches.second, 5, 4).has_value());
  EXPECT_EQ(caches.first->Evict(8), 8u);
  const auto more = Must(caches.Fill(*caches.second, 5, 4));
  other.reset();
  caches.first.reset();
  EXPECT_EQ(caches.budget.used_bytes(), caches.second->stats().hot_bytes_used);
  EXPECT_LE(caches.budget.used_bytes(), caches.budget.bytes());
}

TEST(SharedBudget, MovesBetweenWhatIsChargedAndItsMost) {
  Caches caches(8, 16);
  EXPECT_EQ(caches.budget.bytes(), Caches::Bytes(8));
  const auto held = Must(caches.Fill(*caches.first, 6, 1));
  const uint64_t used = caches.budget.used_bytes();

  EXPECT_EQ(caches.budget.Resize(Caches::Bytes(16) + 1).error().code, ErrorCode::kTooLarge);
  const auto busy = caches.budget.Resize(used - 1);
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  EXPECT_EQ(busy.error().message, "shared budget: " + std::to_string(used) +
                                      " bytes are charged, more than " + std::to_string(used - 1));
  EXPECT_EQ(caches.budget.bytes(), Caches::Bytes(8)) << "nothing changed";

  Must(caches.budget.Resize(used));
  EXPECT_EQ(caches.budget.bytes(), used);
  EXPECT_EQ(caches.budget.used_bytes(), used);
  EXPECT_FALSE(caches.Fill(*caches.second, 1, 2).has_value());
  Must(caches.budget.Resize(Caches::Bytes(16)));
  EXPECT_EQ(caches.budget.used_bytes(), used);
  const auto other = Must(caches.Fill(*caches.second, 10, 3));
  EXPECT_FALSE(caches.Fill(*caches.first, 1, 4).has_value());
}

// Two caches fill and empty themselves while a third thread moves the budget: never more is charged
// than the budget, and in the end all bytes are refunded.
TEST(SharedBudget, HoldsBesideThreadsOfAllCaches) {
  Caches caches(12, 18);
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (Cache* const cache : {caches.first.get(), caches.second.get()}) {
    threads.emplace_back([&, cache] {
      for (uint64_t i = 0; i < 200; ++i) {
        const auto filled = caches.Fill(*cache, 1 + i % 7, i);
        ASSERT_TRUE(filled.has_value() || filled.error().code == ErrorCode::kNoSpace);
        if (i % 3 == 0) cache->Evict(10);
      }
    });
  }
  std::thread mover([&] {
    while (!done) {
      for (const uint64_t slots : {6, 18, 9, 12}) {
        const auto moved = caches.budget.Resize(Caches::Bytes(slots));
        ASSERT_TRUE(moved.has_value() || moved.error().code == ErrorCode::kBusy);
        // Only this thread moves the budget.
        ASSERT_LE(caches.budget.used_bytes(), caches.budget.bytes());
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  mover.join();
  caches.first->Evict(20);
  caches.second->Evict(20);
  EXPECT_EQ(caches.budget.used_bytes(), 0u);
}

}  // namespace
}  // namespace quire::cache

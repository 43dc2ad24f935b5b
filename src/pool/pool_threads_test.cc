// Many threads on one pool. Worth most in the tsan preset.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "pool/pool.h"

namespace quire::pool {
namespace {

constexpr uint32_t kThreads = 4;
constexpr uint32_t kSlotsMax = 32;

// Takes, marks, shares and releases; a slot that two threads own at once shows as a foreign mark.
void Hammer(Pool& pool, uint64_t thread, std::atomic<uint64_t>& foreign_marks) {
  Prng prng(thread);
  std::vector<std::vector<SlotId>> held;
  for (int step = 0; step < 5'000; ++step) {
    std::vector<SlotId> slots(1 + prng.NextBelow(6));
    if (prng.NextChance(2) && pool.Allocate(slots)) {
      for (const SlotId slot : slots) std::memcpy(pool.data(slot), &thread, sizeof(thread));
      held.push_back(std::move(slots));
    } else if (!held.empty()) {
      const size_t chosen = prng.NextBelow(held.size());
      std::swap(held[chosen], held.back());
      for (const SlotId slot : held.back()) {
        uint64_t mark = 0;
        std::memcpy(&mark, pool.data(slot), sizeof(mark));
        if (mark != thread) ++foreign_marks;
        pool.Retain(slot);
        if (pool.Release(slot) || !pool.Release(slot)) ++foreign_marks;
      }
      held.pop_back();
    }
    if (prng.NextChance(200)) pool.Trim();
    if (prng.NextChance(200)) {
      pool.Map([](SlotId, uint32_t) { return '#'; });
    }
  }
  for (const auto& slots : held) {
    for (const SlotId slot : slots) pool.Release(slot);
  }
}

TEST(PoolThreads, NoSlotEverHasTwoOwners) {
  const auto memory = MakeHostMemory(false);
  const auto pool =
      Pool::Create({.name = "p", .slot_bytes = 4096, .slots_max = kSlotsMax}, *memory).value();
  std::atomic<uint64_t> foreign_marks = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t] { Hammer(*pool, t, foreign_marks); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(foreign_marks.load(), 0u);
  EXPECT_EQ(pool->free_count(), kSlotsMax);
  EXPECT_LE(pool->stats().slots_used_peak, kSlotsMax);
  EXPECT_GT(pool->stats().slots_used_peak, 0u);
}

// One holder each way: references taken by one thread are dropped by another.
TEST(PoolThreads, ReferencesTravelBetweenThreads) {
  const auto memory = MakeHostMemory(false);
  const auto pool =
      Pool::Create({.name = "p", .slot_bytes = 4096, .slots_max = 1}, *memory).value();
  SlotId slot;
  ASSERT_TRUE(pool->Allocate({&slot, 1}));
  constexpr int kRounds = 20'000;
  std::atomic<int> given = 0;
  std::thread taker([&] {
    for (int taken = 0; taken < kRounds; ++taken) {
      while (given.load(std::memory_order_acquire) <= taken) std::this_thread::yield();
      EXPECT_FALSE(pool->Release(slot)) << "the first reference is still there";
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    pool->Retain(slot);
    given.store(round, std::memory_order_release);
  }
  taker.join();
  EXPECT_EQ(pool->references(slot), 1u);
  EXPECT_TRUE(pool->Release(slot));
}

}  // namespace
}  // namespace quire::pool

// What other threads do while the spill has a block: they neither get at it nor take the room that
// the request waits for, and the spill holds up nobody else. SPEC M9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <map>
#include <thread>

#include "cache/spill_test_util.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlock = TestCache::kBlock;
constexpr SequenceOptions kSpilling{.on_full = OnFull::kSpill};

NumericProfile F32() { return NumericProfile::Uniform(Codec::kF32); }

/// Waits with its first block until it is told to go on, and remembers where the bytes lie.
class WaitingSpill final : public Spill {
 public:
  Result<void> Store(const LeavingBlock& block) override {
    if (blocks++ > 0) return {};
    bytes = block.parts[0].pieces[0];
    entered.count_down();
    go_on.wait();
    return {};
  }

  std::latch entered{1};
  std::latch go_on{1};
  std::atomic<uint64_t> blocks = 0;
  std::span<const std::byte> bytes;
};

/// Ten slots; four hold a tenant's prompt, the oldest, two another. A thread asks for seven, so
/// that three have left, of which the spill has the first.
struct World {
  /// Slots of the tenant; 0: none.
  struct Limits {
    uint64_t quota = 0;
    uint64_t floor = 0;
  };
  World() : World(Limits{}) {}
  explicit World(const Limits& limits) : cache(10, SmallGeometry(), F32(), 20, {.spill = &spill}) {
    tenant = Must(cache.cache->AddTenant(
        {.name = "tenant",
         .quota_bytes = limits.quota == 0 ? 0 : (limits.quota + 1) * cache.charge_bytes - 1,
         .floor_bytes = limits.floor * cache.charge_bytes}));
    {
      const auto first = Must(cache.cache->Open(Acquire(old), {}));
      // Before its last token has a slot, which is free as soon as this ends.
      Must(cache.model.Feed(*first, std::span(old).first(4 * kBlock)));
      unleased.emplace(Must(first->View(0, StreamRole::kKey)).Unleased());
      Must(cache.model.Feed(*first, old));
    }
    cache.Run(young).reset();
  }
  ~World() { GoOn(); }

  void Start(std::function<void()> work) {
    thread = std::thread(std::move(work));
    spill.entered.wait();
  }
  void Start() {
    Start([this] { opened = cache.TryOpen(wanted, kSpilling); });
  }
  void GoOn() {
    if (!thread.joinable()) return;
    spill.go_on.count_down();
    thread.join();
  }
  Plan Acquire(std::span<const TokenId> prompt) {
    return Must(
        cache.cache->Acquire({.tenant = tenant, .identity = &cache.identity, .tokens = prompt}));
  }
  CacheStats Stats() const { return cache.cache->stats(); }
  // It got what it was promised, and what it writes there is right.
  void ExpectServed() {
    GoOn();
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    Must(cache.model.Feed(**opened, wanted));
    EXPECT_EQ(cache.model.Differs(**opened, wanted), "");
    const CacheStats stats = Stats();
    EXPECT_EQ(stats.spilling_bytes, 0u);
    EXPECT_EQ(SlotCharges(stats), stats.sealed.slots_used * cache.charge_bytes);
  }

  WaitingSpill spill;
  TestCache cache;
  TenantId tenant;
  std::vector<TokenId> old = SomeTokens(4 * kBlock + 1, 1);
  std::vector<TokenId> young = SomeTokens(2 * kBlock + 1, 2);
  std::vector<TokenId> wanted = SomeTokens(7 * kBlock, 3);
  std::optional<UnleasedView> unleased;
  Result<std::unique_ptr<Sequence>> opened;
  std::thread thread;
};

TEST(SpillThreads, ItIsGoneForLookupsButNotForgotten) {
  World world;
  world.Start();
  {
    const Plan plan = world.Acquire(world.old);
    EXPECT_EQ(plan.resident_tokens(), kBlock) << "leased now";
    EXPECT_EQ(plan.reason(), MissReason::kEvicted) << "nobody knows better yet";
    const auto pinned = world.unleased->Pin();
    ASSERT_FALSE(pinned.has_value());
    EXPECT_EQ(pinned.error().code, ErrorCode::kNotFound);
    EXPECT_EQ(world.cache.cache->Verify().blocks, 3u);
  }
  world.ExpectServed();
  EXPECT_EQ(world.Acquire(world.old).reason(), MissReason::kSpilled);
  EXPECT_EQ(world.spill.blocks, 3u);
}

TEST(SpillThreads, TheRoomIsKept) {
  World world;
  world.Start();
  const CacheStats stats = world.Stats();
  // With what the sequence that waits will take besides its slots.
  EXPECT_EQ(stats.hot_bytes_used / world.cache.charge_bytes, 10u);
  EXPECT_EQ(stats.spilling_bytes / world.cache.charge_bytes, 7u);
  EXPECT_EQ(stats.evictable_blocks, 3u);
  // Free are none; three may go, whatever the policy of who asks.
  const auto refused = world.cache.TryOpen(SomeTokens(4 * kBlock, 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("3 free or evictable"));
  EXPECT_EQ(world.cache.TryOpen(SomeTokens(4 * kBlock, 4), kSpilling).error().code,
            ErrorCode::kNoSpace);
  const auto admitted = world.cache.TryOpen(SomeTokens(3 * kBlock, 4), kSpilling);
  EXPECT_TRUE(admitted.has_value()) << "on this thread, while the other waits";
  EXPECT_EQ(world.spill.blocks, 4u);
  world.ExpectServed();
}

TEST(SpillThreads, FloorsCountWhatIsLeavingAsGone) {
  World world({.floor = 2});
  world.wanted = SomeTokens(6 * kBlock, 3);
  world.Start();  // two of the tenant's four have left
  EXPECT_EQ(Must(world.cache.cache->tenant_stats(world.tenant)).bytes_used,
            2 * world.cache.charge_bytes);
  const auto refused = world.cache.TryOpen(SomeTokens(3 * kBlock, 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("2 free or evictable")) << "the young one's";
  const auto admitted = world.cache.TryOpen(SomeTokens(2 * kBlock, 4));
  EXPECT_TRUE(admitted.has_value());
  world.ExpectServed();
  EXPECT_EQ(world.Acquire(world.old).resident_tokens(), 2u * kBlock);
}

TEST(SpillThreads, AQuotaHoldsWithWhatWasPromised) {
  World world({.quota = 5});
  const auto ask = [&](uint64_t blocks) {
    return world.cache.cache->Open(world.Acquire(SomeTokens(blocks * kBlock, 5)), kSpilling);
  };
  world.Start([&] { world.opened = ask(4); });  // three of its four have left
  EXPECT_EQ(
      Must(world.cache.cache->tenant_stats(world.tenant)).bytes_used / world.cache.charge_bytes,
      5u);
  const auto refused = ask(2);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("the quota of tenant \"tenant\""));
  EXPECT_TRUE(ask(1).has_value()) << "for its last block";
  world.GoOn();
  ASSERT_TRUE(world.opened.has_value()) << world.opened.error().message;
  EXPECT_EQ(
      Must(world.cache.cache->tenant_stats(world.tenant)).bytes_used / world.cache.charge_bytes,
      4u);
}

TEST(SpillThreads, ErasingWins) {
  World world;
  world.Start();
  const EraseReport report = Must(world.cache.cache->Erase(world.tenant));
  EXPECT_EQ(report.blocks, 1u) << "that is left";
  EXPECT_EQ(report.slots_pending, 3u);
  EXPECT_TRUE(std::ranges::any_of(world.spill.bytes, [](std::byte b) { return b != std::byte(); }));
  world.GoOn();
  EXPECT_EQ(world.spill.blocks, 1u) << "the other two are not offered any more";
  EXPECT_TRUE(std::ranges::all_of(world.spill.bytes, [](std::byte b) { return b == std::byte(); }));
  EXPECT_EQ(Must(world.cache.cache->tenant_stats(world.tenant)).erase_pending_slots, 0u);
  EXPECT_EQ(world.Acquire(world.old).reason(), MissReason::kNeverSeen);
  world.ExpectServed();
}

TEST(SpillThreads, ResizingGoesRoundIt) {
  World world;
  world.Start();
  const auto busy = world.cache.cache->Resize(world.cache.BytesFor(2));
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  EXPECT_THAT(busy.error().message, HasSubstr("the spill ("));
  Must(world.cache.cache->Resize(world.cache.BytesFor(14)));
  const auto more = world.cache.Open(SomeTokens(4 * kBlock, 4));
  EXPECT_EQ(world.Stats().evicted_total, 3u) << "of the new room";
  Must(world.cache.cache->Resize(world.cache.BytesFor(20)));
  world.ExpectServed();
}

TEST(SpillThreads, ShrinkingKeepsThePromise) {
  World world;
  Must(world.cache.cache->Resize(world.cache.BytesFor(20)));
  world.wanted = SomeTokens(15 * kBlock, 3);
  world.Start();  // one has left
  Must(world.cache.cache->Resize(world.cache.BytesFor(15)));
  EXPECT_EQ(world.Stats().published_blocks, 0u);
  EXPECT_EQ(world.Stats().spilling_bytes / world.cache.charge_bytes, 15u);
  EXPECT_EQ(world.cache.cache->Resize(world.cache.BytesFor(14)).error().code, ErrorCode::kBusy);
  world.ExpectServed();
}

TEST(SpillThreads, ComputedAgainMeanwhileItIsHere) {
  World world;
  world.Start();
  Must(world.cache.cache->Resize(world.cache.BytesFor(20)));
  {
    auto again = Must(world.cache.cache->Open(world.Acquire(world.old), {}));
    Must(world.cache.model.Feed(*again, world.old));
    EXPECT_EQ(world.cache.model.Differs(*again, world.old), "");
  }
  world.ExpectServed();
  EXPECT_EQ(world.Acquire(world.old).resident_tokens(), 4u * kBlock);
  world.cache.cache->Evict(100);
  EXPECT_EQ(world.Acquire(world.old).reason(), MissReason::kEvicted) << "the last time it went";
}

TEST(SpillThreads, ReadersOfTheSequenceThatWaitsGoOn) {
  World world;
  auto sequence = world.cache.Run(std::span(world.wanted).first(2 * kBlock), kSpilling);
  Result<void> reserved;
  world.Start([&] { reserved = sequence->Reserve(7 * kBlock); });
  const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  EXPECT_EQ(view.tokens(), 2u * kBlock);
  EXPECT_EQ(sequence->stats().tokens_reserved, 2u * kBlock);
  world.GoOn();
  Must(std::move(reserved));
  EXPECT_EQ(sequence->stats().tokens_reserved, 7u * kBlock);
  Must(world.cache.model.Feed(*sequence, world.wanted));
  EXPECT_EQ(world.cache.model.Differs(*sequence, world.wanted), "");
}

// What leaves between the decision to shrink and the moves must not stay beyond the new end.
TEST(SpillThreads, WhatLeavesWhileTheArenaShrinksIsMovedFirst) {
  MemorySpill spill;
  TestCache cache(40, SmallGeometry(), F32(), 40, {.spill = &spill});
  for (uint64_t round = 0; round < 60; ++round) {
    // The beginning of the arena is free, the end full of what nobody uses.
    {
      const auto first = cache.Open(SomeTokens(20 * kBlock, 3 * round));
      cache.Run(SomeTokens(20 * kBlock, 3 * round + 1)).reset();
    }
    std::thread shrinking([&] { (void)cache.cache->Resize(cache.BytesFor(22)); });
    for (uint64_t i = 0; i < 8; ++i) {
      (void)cache.TryOpen(SomeTokens((21 + i % 2) * kBlock, 3 * round + 2), kSpilling);
    }
    shrinking.join();
    Must(cache.cache->Resize(cache.BytesFor(40)));
    EXPECT_EQ(cache.cache->Verify().damaged, 0u);
    cache.cache->Evict(100);
    ASSERT_EQ(cache.slots_used(), 0u);
  }
  EXPECT_GT(cache.cache->stats().spilled_total, 60u);
}

/// Remembers every block's bytes by its key, has errors now and then, and lets others run.
class MovingSpill final : public Spill {
 public:
  Result<void> Store(const LeavingBlock& block) override {
    const SpilledBlock copy(block);
    std::this_thread::yield();
    const std::lock_guard lock(mutex);
    if (++calls % 7 == 0) return Fail(ErrorCode::kIo, "");
    const auto [known, is_new] = bytes.emplace(copy.key, copy.parts[0].bytes);
    if (known->second != copy.parts[0].bytes) ++wrong;
    return {};
  }

  std::mutex mutex;
  std::map<Digest, std::vector<std::byte>> bytes;
  uint64_t calls = 0;
  uint64_t wrong = 0;
};

std::vector<TokenId> Script(uint64_t number) {
  return Join(SomeTokens(2 * kBlock, number % 3), SomeTokens(3 * kBlock + 1, number));
}

TEST(SpillThreads, ManyRequestsAtOnce) {
  constexpr uint64_t kScripts = 9;
  // What is right: all blocks, one after the other, of a cache that only one thread uses.
  MemorySpill right;
  {
    TestCache reference(50, SmallGeometry(), F32(), 0, {.spill = &right});
    for (uint64_t s = 0; s < kScripts; ++s) reference.Run(Script(s)).reset();
    reference.Open(SomeTokens(50 * kBlock, 99), kSpilling).reset();
  }
  MovingSpill spill;
  TestCache cache(16, SmallGeometry(), F32(), 20, {.spill = &spill});
  const TenantId other = Must(cache.cache->AddTenant({.name = "other"}));
  std::atomic<uint64_t> served = 0;
  std::atomic<uint64_t> refused = 0;
  const auto serve = [&](uint64_t seed) {
    Prng prng(seed);
    for (int round = 0; round < 150; ++round) {
      const auto script = Script(prng.NextBelow(kScripts));
      const auto prompt = std::span(script).first(1 + prng.NextBelow(script.size()));
      // The other tenant's keys are its own, so its blocks stay out of the comparison.
      auto plan = cache.cache->Acquire(
          {.tenant = kDefaultTenant, .identity = &cache.identity, .tokens = prompt});
      auto opened = cache.cache->Open(*std::move(plan), kSpilling);
      if (!opened) {
        EXPECT_EQ(opened.error().code, ErrorCode::kNoSpace) << opened.error().message;
        ++refused;
        continue;
      }
      const auto fed = cache.model.Feed(**opened, prompt);
      EXPECT_TRUE(fed.has_value());
      EXPECT_EQ(cache.model.Differs(**opened, prompt), "");
      ++served;
    }
  };
  std::atomic<bool> stop = false;
  std::thread disturber([&] {
    Prng prng(5);
    while (!stop) {
      const uint64_t what = prng.NextBelow(5);
      if (what == 0) cache.cache->Evict(2);
      if (what == 1) {
        EXPECT_EQ(cache.cache->Verify().damaged, 0u);
      }
      if (what == 2) (void)cache.cache->Resize(cache.BytesFor(12 + prng.NextBelow(9)));
      if (what == 3) Must(cache.cache->Erase(other));
      if (what == 4) {
        const auto prompt = SomeTokens(2 * kBlock, 50 + prng.NextBelow(4));
        auto opened = cache.cache->Open(
            Must(cache.cache->Acquire(
                {.tenant = other, .identity = &cache.identity, .tokens = prompt})),
            kSpilling);
        if (opened) Must(cache.model.Feed(**opened, prompt));
      }
      const CacheStats stats = cache.cache->stats();
      EXPECT_LE(stats.hot_bytes_used, stats.hot_bytes_limit);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) threads.emplace_back(serve, t);
  for (std::thread& thread : threads) thread.join();
  stop = true;
  disturber.join();

  EXPECT_EQ(spill.wrong, 0u);
  uint64_t compared = 0;
  for (const SpilledBlock& block : right.stored()) {
    const auto found = spill.bytes.find(block.key);
    if (found == spill.bytes.end()) continue;
    ++compared;
    EXPECT_EQ(found->second, block.parts[0].bytes);
  }
  EXPECT_GT(compared, 10u);
  EXPECT_GT(served, 100u);
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.spilled_total + stats.spill_failed_total, spill.calls);
  EXPECT_EQ(stats.spill_failed_total, spill.calls / 7);
  cache.cache->Evict(1000);
  EXPECT_EQ(cache.slots_used(), 0u);
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
  EXPECT_EQ(cache.cache->stats().spilling_bytes, 0u);
  EXPECT_EQ(Must(cache.cache->tenant_stats(kDefaultTenant)).bytes_used, 0u);
}

}  // namespace
}  // namespace quire::cache

// How many blocks are evicted at once when room is needed.
#include <gtest/gtest.h>

#include "base/prng.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

struct BatchWorld : TestCache {
  explicit BatchWorld(uint64_t slots, EvictionBatch batch) : TestCache(slots) {
    cache = MakeCache({.geometry = SmallGeometry(),
                       .profile = NumericProfile::Uniform(Codec::kF16),
                       .hot_bytes = slots * charge_bytes + charge_bytes - 1,
                       .eviction_batch = batch});
  }
  /// Opens and computes a new prompt; returns what it evicted.
  uint64_t Evicted(uint64_t blocks, TenantId tenant = kDefaultTenant) {
    const uint64_t before = cache->stats().evicted_total;
    const auto prompt = SomeTokens(blocks * kBlock, 100 + prompts++);
    auto plan = Must(cache->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt}));
    const auto sequence = Must(cache->Open(std::move(plan), {}));
    const uint64_t evicted = cache->stats().evicted_total - before;
    EXPECT_LE(cache->stats().hot_bytes_used, cache->stats().hot_bytes_limit);
    Must(model.Feed(*sequence, prompt));
    return evicted;
  }
  uint64_t prompts = 0;
};

TEST(EvictionBatch, ExactTakesWhatIsNeeded) {
  BatchWorld world(/*slots=*/64, EvictionBatch::kExact);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(world.Evicted(4), 0u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(world.Evicted(4), 4u);
}

TEST(EvictionBatch, GrowsUnderPressureAndShrinksAfter) {
  BatchWorld world(/*slots=*/64, EvictionBatch::kAdaptive);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(world.Evicted(4), 0u) << "there is room";
  EXPECT_EQ(world.Evicted(4), 4u) << "one request says little";
  EXPECT_EQ(world.slots_used(), 64u);
  uint64_t free_before = 0;
  uint64_t evicted = 0;
  uint64_t requests = 0;
  while (free_before < 4 && requests < 100) {
    evicted += world.Evicted(4);
    ++requests;
    const uint64_t free = 64 - world.slots_used();
    EXPECT_GE(free, free_before) << "ever more in advance";
    free_before = free;
  }
  EXPECT_EQ(free_before, 4u) << "another request's need";
  EXPECT_EQ(evicted, requests * 4 + free_before) << "in advance, not in addition";

  // No pressure: requests that find room, again and again.
  const auto known = SomeTokens(2 * kBlock, 1);
  world.cache->Evict(20);
  for (int i = 0; i < 100; ++i) world.Run(known);
  const uint64_t room = 64 - world.slots_used();
  EXPECT_LE(world.Evicted(room + 4), 5u) << "at most a block in advance";
}

TEST(EvictionBatch, RespectsFloorsAndLeases) {
  BatchWorld world(/*slots=*/40, EvictionBatch::kAdaptive);
  const TenantId kept =
      Must(world.cache->AddTenant({.name = "kept", .floor_bytes = 10 * world.charge_bytes}));
  world.Evicted(10, kept);
  const auto held = SomeTokens(20 * kBlock, 1);
  const auto sequence = world.Run(held);
  uint64_t most = 0;
  for (int i = 0; i < 200; ++i) most = std::max(most, world.Evicted(5));
  EXPECT_GT(most, 5u);
  EXPECT_EQ(Must(world.cache->tenant_stats(kept)).published_blocks, 10u);
  EXPECT_EQ(world.model.Differs(*sequence, held), "");
  EXPECT_EQ(world.Resident(held), 19u * kBlock);
  // Fewer blocks are evictable than a batch would evict.
  for (int i = 0; i < 50; ++i) world.Evicted(10);
  EXPECT_EQ(Must(world.cache->tenant_stats(kept)).published_blocks, 10u);
}

TEST(EvictionBatch, OfAQuotaTakesTheTenantsOwn) {
  BatchWorld world(/*slots=*/64, EvictionBatch::kAdaptive);
  const TenantId small =
      Must(world.cache->AddTenant({.name = "small", .quota_bytes = 20 * world.charge_bytes}));
  world.Evicted(20);
  uint64_t most = 0;
  for (int i = 0; i < 100; ++i) most = std::max(most, world.Evicted(4, small));
  EXPECT_GT(most, 4u);
  EXPECT_LE(most, 4u + 20 / 8);
  EXPECT_EQ(Must(world.cache->tenant_stats(kDefaultTenant)).published_blocks, 20u);
}

TEST(EvictionBatch, NeverMindsARefusal) {
  BatchWorld world(/*slots=*/20, EvictionBatch::kAdaptive);
  for (int i = 0; i < 40; ++i) world.Evicted(5);
  auto plan = world.Acquire(SomeTokens(19 * kBlock, 1));
  const auto before = world.Snapshot();
  EXPECT_FALSE(world.cache->Open(std::move(plan), {.on_full = OnFull::kNoEvict}).has_value());
  EXPECT_EQ(world.Snapshot(), before) << "nothing goes for who may not evict";
}

TEST(EvictionBatch, MustBeKnown) {
  const auto cache = Cache::Create({.geometry = SmallGeometry(),
                                    .profile = NumericProfile::Uniform(Codec::kF16),
                                    .hot_bytes = 1 << 20,
                                    .eviction_batch = static_cast<EvictionBatch>(9)});
  ASSERT_FALSE(cache.has_value());
  EXPECT_EQ(cache.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::cache

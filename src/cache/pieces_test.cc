// However long a path is, one hold of the cache's lock touches few of its blocks.
#include <gtest/gtest.h>

#include "cache/core.h"
#include "cache/test_util.h"
#include "env/clock.h"

namespace quire::cache {
namespace {

constexpr uint32_t kBlock = TestCache::kBlock;
constexpr uint64_t kLong = 2000;  // blocks

const Core& CoreOf(const TestCache& cache) { return static_cast<const Core&>(*cache.cache); }

void RunLongPaths(TestCache& cache) {
  const auto prompt = SomeTokens(kLong * kBlock + 1, 1);
  cache.Run(prompt).reset();
  const auto longer = Join(prompt, SomeTokens(kBlock, 2));
  {
    const auto hit = cache.Open(longer);
    ASSERT_EQ(hit->length(), kLong * kBlock);
    const auto fork = Must(hit->Fork());
    const auto view = Must(hit->View(0, StreamRole::kKey));
  }
  cache.Acquire(longer);  // a plan that is dropped
  const AcquireRequest request{.identity = &cache.identity, .tokens = longer};
  const SequenceOptions options{.reserve_tokens = longer.size()};
  AcquireRequest asked = request;
  asked.open_as = &options;
  Must(cache.cache->Acquire(asked));
  EXPECT_GT(cache.cache->stats().evictable_blocks, kLong - 1);
  // All of it goes for another one, then for nobody.
  cache.Run(SomeTokens(kLong * kBlock, 3)).reset();
  EXPECT_GT(cache.cache->Evict(kLong), 100u);
  EXPECT_LE(CoreOf(cache).most_touched(), kRecordsPerHold);
  EXPECT_GT(CoreOf(cache).most_touched(), kBlocksPerHold);
  CoreOf(cache).CheckDirectory();
}

TEST(Pieces, OfLongPaths) {
  TestCache cache(kLong + 40, Geometry::Uniform(/*layers=*/1, /*kv_heads=*/1, /*head_dim=*/4));
  RunLongPaths(cache);
}

TEST(Pieces, OfAnErasureAndOfTimesToLive) {
  ManualClock clock(1000);
  TestCache cache(kLong + 40, Geometry::Uniform(1, 1, 4), NumericProfile::Uniform(Codec::kF16), 0,
                  {.clock = &clock});
  const auto prompt = SomeTokens(kLong * kBlock, 1);
  const auto run = [&](TenantId tenant) {
    const AcquireRequest request{.tenant = tenant, .identity = &cache.identity, .tokens = prompt};
    const auto sequence = Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
    Must(cache.model.Feed(*sequence, prompt));
  };
  const TenantId erased = Must(cache.cache->AddTenant({.name = "erased"}));
  run(erased);
  EXPECT_EQ(Must(cache.cache->Erase(erased)).blocks, kLong);
  const TenantId aging = Must(cache.cache->AddTenant({.name = "aging", .ttl_us = 1}));
  run(aging);
  clock.Advance(10);
  const AcquireRequest again{.tenant = aging, .identity = &cache.identity, .tokens = prompt};
  EXPECT_EQ(Must(cache.cache->Acquire(again)).resident_tokens(), 0u);
  EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
  EXPECT_LE(CoreOf(cache).most_touched(), kRecordsPerHold);
}

// A window keeps the last blocks only; their leases keep the whole path.
TEST(Pieces, OfLongPathsUnderWindows) {
  const Stream key{.role = StreamRole::kKey, .heads = 1, .dim = 4};
  const Stream value{.role = StreamRole::kValue, .heads = 1, .dim = 4};
  Geometry geometry;
  geometry.groups = {{.kind = LayerKind::kFull, .layers = {0}, .streams = {key, value}},
                     {.kind = LayerKind::kWindow,
                      .layers = {1},
                      .window_tokens = 2 * kBlock,
                      .streams = {key, value}}};
  TestCache cache(kLong + 80, geometry);
  RunLongPaths(cache);
}

}  // namespace
}  // namespace quire::cache

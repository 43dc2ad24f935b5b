// Slots that are released after a fence stay held until it is done, and no call waits for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<HandFence> MakeFence() { return std::make_shared<HandFence>(); }

TEST(Fences, ReleasedSlotsWaitForTheirFenceAndNoCallDoes) {
  TestCache cache(8);
  auto sequence = cache.Run(SomeTokens(3 * kBlock, 1), {.publish = false});
  BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  sequence.reset();
  const auto fence = MakeFence();
  view.Release(fence);
  EXPECT_EQ(view.block_count(), 0u);
  EXPECT_EQ(view.tokens(), 0u);
  cache.cache->Evict(1);
  EXPECT_EQ(cache.slots_used(), 3u) << "a device may still read them";
  fence->Complete();
  EXPECT_EQ(cache.slots_used(), 3u) << "nobody has looked";
  cache.cache->Evict(1);  // every call looks through the list of fences
  EXPECT_EQ(cache.slots_used(), 0u);
  EXPECT_FALSE(fence->waited());
  view.Release(fence);  // the view is empty afterwards
  EXPECT_EQ(fence.use_count(), 1) << "the cache keeps no fence that is done";
}

TEST(Fences, OneThatIsDoneAlreadyIsNotKept) {
  TestCache cache(8);
  auto sequence = cache.Run(SomeTokens(2 * kBlock, 1), {.publish = false});
  BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  sequence.reset();
  const auto fence = MakeFence();
  fence->Complete();
  view.Release(fence);
  EXPECT_EQ(cache.slots_used(), 0u);
  EXPECT_EQ(fence.use_count(), 1);
}

TEST(Fences, EachReleasesItsOwnInAnyOrder) {
  TestCache cache(8);
  std::vector<std::shared_ptr<HandFence>> fences;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto sequence = cache.Run(SomeTokens(2 * kBlock, seed), {.publish = false});
    fences.push_back(MakeFence());
    Must(sequence->View(0, StreamRole::kKey)).Release(fences.back());
  }
  uint64_t used = 8;
  for (const size_t i : {2u, 0u, 3u, 1u}) {
    EXPECT_EQ(cache.slots_used(), used);
    fences[i]->Complete();
    cache.cache->Evict(1);
    used -= 2;
  }
  EXPECT_EQ(cache.slots_used(), 0u);
}

// A device that reads blocks is a holder like others: a request for their slots is refused, does
// not wait, and succeeds when the device is done.
TEST(Fences, RoomThatADeviceStillReadsIsRefusedUntilItIsDone) {
  TestCache cache(4);
  const auto prompt = SomeTokens(4 * kBlock, 1);
  const auto other = SomeTokens(4 * kBlock, 2);
  auto sequence = cache.Run(prompt);
  BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  sequence.reset();
  const auto fence = MakeFence();
  view.Release(fence);
  EXPECT_EQ(cache.cache->Evict(100), 0u);
  const auto refused = cache.TryOpen(other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(fence->waited());
  const auto small = cache.cache->Resize(cache.BytesFor(2));
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().code, ErrorCode::kBusy);
  EXPECT_THAT(small.error().message, HasSubstr("plans and views (2)"));
  {
    const Plan plan = cache.Acquire(prompt);  // a lookup shares it
    EXPECT_EQ(plan.resident_tokens(), 3u * kBlock);
  }
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  fence->Complete();
  const auto opened = cache.Run(other);
  EXPECT_EQ(cache.model.Differs(*opened, other), "");
  EXPECT_FALSE(fence->waited());
}

TEST(Fences, AnErasedBlockIsZeroedWhenItsReaderIsDone) {
  TestCache cache(8);
  const TenantId tenant = Must(cache.cache->AddTenant({.name = "a"}));
  const auto prompt = SomeTokens(2 * kBlock, 1);
  auto sequence = Must(cache.cache->Open(
      Must(cache.cache->Acquire({.tenant = tenant, .identity = &cache.identity, .tokens = prompt})),
      {}));
  Must(cache.model.Feed(*sequence, prompt));
  BlockListView view = Must(sequence->View(0, StreamRole::kValue));
  const std::byte* const slot = view.slots()[1];
  const auto is_zero = [&] {
    const std::span bytes(OnHost(slot), cache.cache->block_bytes());
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  };
  sequence.reset();
  const auto fence = MakeFence();
  view.Release(fence);
  EXPECT_EQ(Must(cache.cache->Erase(tenant)).slots_pending, 2u);
  EXPECT_FALSE(is_zero());
  fence->Complete();
  EXPECT_EQ(cache.Resident(prompt), 0u);
  EXPECT_TRUE(is_zero());
  EXPECT_EQ(Must(cache.cache->tenant_stats(tenant)).erase_pending_slots, 0u);
}

TEST(Fences, DestroyingTheCacheWaitsForThem) {
  const auto fence = MakeFence();
  {
    TestCache cache(8);
    const auto sequence = cache.Run(SomeTokens(2 * kBlock, 1));
    Must(sequence->View(0, StreamRole::kKey)).Release(fence);
    EXPECT_FALSE(fence->waited());
  }
  EXPECT_TRUE(fence->waited());
  EXPECT_EQ(fence.use_count(), 1);
}

TEST(Fences, ThreadsReleaseAndLookAtOnce) {
  TestCache cache(64);
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  cache.Run(prompt).reset();
  std::vector<std::thread> threads;
  std::atomic<uint64_t> waited = 0;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      std::vector<std::shared_ptr<HandFence>> fences;
      for (uint64_t i = 0; i < 200; ++i) {
        const auto sequence = cache.Open(prompt);
        fences.push_back(MakeFence());
        Must(sequence->View(1, StreamRole::kKey)).Release(fences.back());
        if (i >= 3) fences[i - 3]->Complete();
      }
      for (const auto& fence : fences) {
        fence->Complete();
        if (fence->waited()) ++waited;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(waited, 0u);
  EXPECT_EQ(cache.cache->Evict(100), 4u) << "nobody holds any of them";
  EXPECT_EQ(cache.slots_used(), 0u);
}

}  // namespace
}  // namespace quire::cache

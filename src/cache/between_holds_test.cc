// What other threads do while a call has released the cache's lock: the call must check again what
// it saw before.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cache/core.h"
#include "cache/meanwhile_test_util.h"
#include "cache/sequence/twins_test_util.h"
#include "cache/test_device.h"
#include "quire/sequence.h"

namespace quire::cache {
namespace {

/// A sequence that shares nothing from the start, though the cache may have its prompt.
std::unique_ptr<Sequence> OpenAlone(TestCache& cache, std::span<const TokenId> prompt,
                                    const SequenceOptions& options = {}) {
  return Must(cache.cache->Open(cache.Acquire(prompt, /*reuse=*/false), options));
}

/// Every row of `history`, committed or not.
void AppendAll(const TestCache& cache, Sequence& sequence, std::span<const TokenId> history) {
  for (uint32_t layer = 0; layer < cache.model.geometry().layer_count(); ++layer) {
    Must(cache.model.AppendLayer(sequence, layer, history));
  }
}

TEST(BetweenHolds, BlocksOfATenantErasedMeanwhileAreNotPublished) {
  TestCache cache(20);
  const TenantId tenant = Must(cache.cache->AddTenant({.name = "a"}));
  const auto prompt = SomeTokens(3 * kBlock, 1);
  const AcquireRequest request{.tenant = tenant, .identity = &cache.identity, .tokens = prompt};
  auto sequence = Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
  {
    const Meanwhile erased("publish: hashed", [&] { Must(cache.cache->Erase(tenant)); });
    Must(cache.model.Feed(*sequence, prompt));
  }
  EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
  EXPECT_EQ(cache.cache->stats().published_total, 0u);
  EXPECT_EQ(cache.model.Differs(*sequence, prompt), "");
  EXPECT_EQ(Must(cache.cache->tenant_stats(tenant)).erase_pending_slots, 3u);
  sequence.reset();
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
}

TEST(BetweenHolds, NothingIsPublishedAfterABlockFoundDamagedMeanwhile) {
  TestCache cache(20);
  const auto prompt = SomeTokens(kBlock, 1);
  const auto longer = Join(prompt, SomeTokens(2 * kBlock, 2));
  auto sequence = cache.Run(prompt);
  FlipBit(*sequence, 0);
  {
    const Meanwhile verified("publish: hashed",
                             [&] { EXPECT_EQ(cache.cache->Verify().damaged, 1u); });
    Must(cache.model.Feed(*sequence, longer));
  }
  EXPECT_EQ(cache.cache->stats().published_total, 1u);
  EXPECT_EQ(cache.Resident(longer), 0u);
  sequence.reset();
  EXPECT_EQ(cache.slots_used(), 0u);
}

TEST(BetweenHolds, ABlockPublishedMeanwhileIsJoined) {
  TestCache cache(20);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  const auto first = OpenAlone(cache, prompt);
  const auto second = OpenAlone(cache, prompt);
  {
    const Meanwhile published("publish: hashed", [&] { Must(cache.model.Feed(*first, prompt)); });
    Must(cache.model.Feed(*second, prompt));
  }
  EXPECT_EQ(cache.cache->stats().published_total, 3u);
  EXPECT_EQ(cache.cache->stats().deduplicated_total, 3u);
  EXPECT_EQ(cache.slots_used(), 5u) << "three of both, and a tail each";
  EXPECT_EQ(cache.model.Differs(*second, prompt), "");
  EXPECT_EQ(cache.cache->Verify().blocks, 3u);
}

// Each time the lookup has found a path, its last block is evicted. After eight attempts the lookup
// answers as if the prompt were not cached.
TEST(BetweenHolds, ALookupIsNotForEver) {
  TestCache cache(20);
  const auto prompt = SomeTokens(12 * kBlock + 1, 1);
  cache.Run(prompt).reset();
  int looks = 0;
  {
    const SyncPointHandler lost([&](std::string_view name) {
      if (name != "acquire: before blocks are leased") return;
      ++looks;
      EXPECT_EQ(cache.cache->Evict(1), 1u);
    });
    EXPECT_EQ(cache.Resident(prompt), 0u);
  }
  EXPECT_EQ(looks, 8);
  EXPECT_EQ(cache.Resident(prompt), 4u * kBlock);
}

// Between the lookup and the lease a shrink moves the blocks.
TEST(BetweenHolds, APathThatMovesMeanwhileIsReadWhereItIs) {
  TestCache cache(20);
  cache.Run(SomeTokens(8 * kBlock, 1)).reset();
  const auto prompt = SomeTokens(5 * kBlock + 1, 2);
  cache.Run(prompt).reset();
  ASSERT_EQ(cache.cache->Evict(8), 8u);
  bool moved = false;
  const auto acquire = [&] {
    const SyncPointHandler handler([&](std::string_view name) {
      if (name != "acquire: before blocks are leased" || std::exchange(moved, true)) return;
      Must(cache.cache->Resize(cache.BytesFor(8)));
    });
    return Must(cache.cache->Acquire({.identity = &cache.identity, .tokens = prompt}));
  };
  const auto sequence = Must(cache.cache->Open(acquire(), {}));
  EXPECT_TRUE(moved);
  EXPECT_EQ(sequence->length(), 5 * kBlock);
  EXPECT_EQ(cache.model.Differs(*sequence, std::span(prompt).first(5 * kBlock)), "");
}

// A domain whose quota had room at the first check and has none at the second.
TEST(BetweenHolds, RoomOfAnAccountThatWentMeanwhileIsNotOverdrawn) {
  TestCache cache(20);
  const uint64_t quota_bytes = 2 * cache.charge_bytes;
  const TenantId house =
      Must(cache.cache->AddTenant({.name = "house", .quota_bytes = quota_bytes, .shared = true}));
  const TenantId a = Must(cache.cache->AddTenant({.name = "a", .domain = "house"}));
  const auto prompt = SomeTokens(2 * kBlock, 1);
  const auto other = SomeTokens(2 * kBlock, 2);
  const auto open = [&](std::span<const TokenId> tokens) {
    const AcquireRequest request{.tenant = a, .identity = &cache.identity, .tokens = tokens};
    return Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
  };
  const auto first = open(prompt);
  const auto second = open(other);
  {
    const Meanwhile filled("publish: hashed", [&] { Must(cache.model.Feed(*second, other)); });
    Must(cache.model.Feed(*first, prompt));
  }
  const TenantStats stats = Must(cache.cache->tenant_stats(house));
  EXPECT_EQ(stats.published_blocks, 2u);
  EXPECT_LE(stats.bytes_peak, quota_bytes);
  EXPECT_EQ(first->stats().blocks_own, 2u);
}

/// A cache that shrinks from 8 slots to 4, with a prompt's two blocks beyond the new end.
class Shrinking : public testing::Test {
 protected:
  static constexpr uint64_t kFew = 4;

  /// Shrinks the cache, and runs `then` while its blocks are about to move.
  void ShrinkWhile(std::function<void()> then,
                   const std::string& at = "resize: before a block moves") {
    const Meanwhile moving(at, std::move(then));
    Must(cache_.cache->Resize(cache_.BytesFor(kFew)));
  }
  /// Caches the prompt behind `low`, and then ends `low`.
  void CacheBehind(std::unique_ptr<Sequence> low) {
    const auto prompt = OpenAlone(cache_, prompt_);
    Must(cache_.model.Feed(*prompt, prompt_));
    low.reset();
  }
  std::unique_ptr<Sequence> Low(uint64_t blocks) {
    return cache_.Run(SomeTokens(blocks * kBlock, 9), {.publish = false});
  }

  TestCache cache_{8};
  const std::vector<TokenId> prompt_ = SomeTokens(2 * kBlock, 1);
};

TEST_F(Shrinking, WhatWentMeanwhileDoesNotMove) {
  CacheBehind(Low(5));
  ShrinkWhile([&] { EXPECT_EQ(cache_.cache->Evict(10), 2u); });
  EXPECT_EQ(cache_.slots_used(), 0u);
  EXPECT_EQ(cache_.cache->stats().sealed.slots_max, kFew);
}

TEST_F(Shrinking, ABlockThatASequenceJoinsStaysWhereItIs) {
  // It has all rows, below the end, and commits them while the cached blocks are yet to move.
  const auto sequence = OpenAlone(cache_, prompt_);
  AppendAll(cache_, *sequence, prompt_);
  CacheBehind(Low(3));
  ShrinkWhile([&] {
    Must(sequence->Commit(prompt_));
    EXPECT_EQ(cache_.cache->stats().deduplicated_total, 2u);
    EXPECT_EQ(cache_.model.Differs(*sequence, prompt_), "");
  });
  EXPECT_EQ(cache_.slots_used(), 2u);
  EXPECT_EQ(cache_.model.Differs(*sequence, prompt_), "");
  EXPECT_EQ(cache_.cache->Verify().damaged, 0u);
}

// The block is found, and the arena's end stays where it was until the plan releases the block.
TEST_F(Shrinking, ABlockThatAPlanHoldsStaysWhereItIs) {
  for (const std::string at : {"resize: before a block moves", "resize: a block was copied"}) {
    SCOPED_TRACE(at);
    Must(cache_.cache->Resize(cache_.BytesFor(8)));
    cache_.cache->Evict(10);
    CacheBehind(Low(5));
    const auto longer = Join(prompt_, SomeTokens(1, 2));
    std::optional<Plan> plan;
    ShrinkWhile([&] { plan = cache_.Acquire(longer); }, at);
    auto hit = Must(cache_.cache->Open(*std::move(plan), {}));
    ASSERT_EQ(hit->length(), 2u * kBlock);
    EXPECT_EQ(cache_.model.Differs(*hit, prompt_), "");
    EXPECT_EQ(cache_.cache->stats().sealed.slots_max, kFew);
    // Growing needs the blocks beyond the arena's end to be moved first.
    const auto grown = cache_.cache->Resize(cache_.BytesFor(8));
    ASSERT_FALSE(grown.has_value());
    EXPECT_EQ(grown.error().code, ErrorCode::kBusy);
    hit.reset();
    cache_.cache->Trim();  // moves the blocks that the shrink could not move
    Must(cache_.cache->Resize(cache_.BytesFor(8)));
    EXPECT_EQ(cache_.Resident(longer), 2u * kBlock);
    EXPECT_EQ(cache_.cache->Verify().damaged, 0u);
  }
}

TEST_F(Shrinking, WhatGoesWhileItIsCopiedIsFreeAfterwards) {
  CacheBehind(Low(5));
  ShrinkWhile([&] { cache_.cache->Evict(10); }, "resize: a block was copied");
  EXPECT_EQ(cache_.slots_used(), 0u);
  EXPECT_EQ(cache_.cache->stats().hot_bytes_used, 0u);
  const auto four = cache_.Run(SomeTokens(kFew * kBlock, 3), {.publish = false});
  EXPECT_EQ(cache_.slots_used(), kFew) << "neither a slot nor its copy is lost";
}

// The slot that a block is copied to is not handed out before the copy has ended, also when the
// copy is dropped.
TEST_F(Shrinking, ADroppedCopyOverwritesNoSlotInUse) {
  CacheBehind(Low(5));
  const auto others = SomeTokens(2 * kBlock, 5);
  std::optional<Plan> plan;
  std::unique_ptr<Sequence> other;
  ShrinkWhile(
      [&] {
        plan = cache_.Acquire(Join(prompt_, SomeTokens(1, 2)));
        other = cache_.Run(others, {.publish = false});
      },
      "resize: before a block is copied");
  EXPECT_EQ(cache_.model.Differs(*other, others), "");
  EXPECT_EQ(cache_.slots_used(), 4u);
  other.reset();
  EXPECT_EQ(Must(cache_.cache->Open(*std::exchange(plan, {}), {}))->length(), 2u * kBlock);
  cache_.cache->Evict(10);
  EXPECT_EQ(cache_.slots_used(), 0u);
  const auto four = cache_.Run(SomeTokens(kFew * kBlock, 3), {.publish = false});
  EXPECT_EQ(cache_.slots_used(), kFew) << "neither a slot nor its copy is lost";
}

TEST(BetweenHolds, ABlockErasedWhileItIsCopiedLeavesNoCopy) {
  const Geometry geometry = SmallGeometry();
  const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  const uint64_t charge_bytes = ChargePerSlot(geometry, profile);
  const auto core = Must(Core::Make(
      OnTestDevice({.geometry = geometry, .profile = profile, .hot_bytes = 9 * charge_bytes})));
  const TenantId tenant = Must(core->AddTenant({.name = "a"}));
  const Identity identity = SomeIdentity();
  const FakeModel model(geometry);
  const auto run = [&](TenantId of, std::span<const TokenId> tokens, bool publish) {
    auto plan = Must(core->Acquire({.tenant = of, .identity = &identity, .tokens = tokens}));
    auto sequence = Must(core->Open(std::move(plan), {.publish = publish}));
    Must(model.Feed(*sequence, tokens));
    return sequence;
  };
  const auto bytes_of = [&](uint32_t slot) {
    const std::byte* first = OnHost(core->state().slots().data(SlotId(slot)));
    return std::vector(first, first + core->state().classes().slot_bytes(0));
  };
  const auto prompt = SomeTokens(kBlock + 1, 1);
  auto low = run(kDefaultTenant, SomeTokens(5 * kBlock, 2), /*publish=*/false);
  run(tenant, prompt, /*publish=*/true).reset();
  low.reset();
  const auto erased = bytes_of(5);
  std::optional<Plan> plan;
  {
    const Meanwhile gone("resize: before a block is copied", [&] {
      plan = Must(core->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt}));
      ASSERT_EQ(plan->resident_tokens(), kBlock);
      Must(core->Erase(tenant));
    });
    Must(core->Resize(4 * charge_bytes));
  }
  for (uint32_t slot = 0; slot < 4; ++slot) EXPECT_TRUE(bytes_of(slot) != erased) << slot;
  plan.reset();
  EXPECT_EQ(Must(core->tenant_stats(tenant)).erase_pending_slots, 0u);
  EXPECT_EQ(core->stats().sealed.slots_used, 0u);
}

// Slots whose memory is given back while they are about to be zeroed are left alone.
TEST_F(Shrinking, MemoryThatGoesMeanwhileIsNotZeroed) {
  CacheBehind(Low(5));
  cache_.cache->Evict(10);
  const Meanwhile gone("erase: before free slots are zeroed",
                       [&] { Must(cache_.cache->Resize(cache_.BytesFor(kFew))); });
  EXPECT_EQ(Must(cache_.cache->Erase(kDefaultTenant)).slots_zeroed, kFew);
}

// Bytes that the tenant writes after the zeroing belong to the next erasure.
TEST_F(Shrinking, WhatIsWrittenAfterItWasZeroedIsErasedNextTime) {
  Low(2).reset();
  {
    const Meanwhile written("erase: free slots were zeroed", [&] { Low(2).reset(); });
    EXPECT_EQ(Must(cache_.cache->Erase(kDefaultTenant)).slots_zeroed, 0u);
  }
  EXPECT_EQ(Must(cache_.cache->Erase(kDefaultTenant)).slots_zeroed, 2u);
}

// The slots of a block that is evicted while it is verified are free after the read, and zeroed if
// the tenant was erased.
TEST(BetweenHolds, SlotsEvictedWhileVerifiedAreFreeAfterwards) {
  for (const bool erase : {false, true}) {
    TestCache cache(4);
    const TenantId tenant = Must(cache.cache->AddTenant({.name = "a"}));
    const auto prompt = SomeTokens(2 * kBlock, 1);
    const AcquireRequest request{.tenant = tenant, .identity = &cache.identity, .tokens = prompt};
    auto sequence = Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
    Must(cache.model.Feed(*sequence, prompt));
    sequence.reset();
    {
      const Meanwhile gone("verify: a block was read", [&] {
        if (erase) {
          Must(cache.cache->Erase(tenant));
        } else {
          cache.cache->Evict(10);
        }
        EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
        EXPECT_EQ(cache.slots_used(), 1u) << "the one that is read";
      });
      EXPECT_EQ(cache.cache->Verify().blocks, 1u);
    }
    EXPECT_EQ(cache.slots_used(), 0u);
    EXPECT_EQ(Must(cache.cache->tenant_stats(tenant)).erase_pending_slots, 0u);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
  }
}

// A request waits for the slots that it evicted while they are being read.
TEST(BetweenHolds, ARequestWaitsForASlotThatIsVerified) {
  TestCache cache(2);
  cache.Run(SomeTokens(2 * kBlock, 1)).reset();
  std::thread other;
  {
    const Meanwhile wanted("verify: a block was read", [&] {
      if (other.joinable()) return;
      other = std::thread([&] {
        const auto all = cache.Run(SomeTokens(2 * kBlock, 2), {.publish = false});
        EXPECT_EQ(all->length(), 2u * kBlock);
      });
      while (cache.cache->stats().published_blocks > 1) std::this_thread::yield();
    });
    cache.cache->Verify();
  }
  other.join();
  EXPECT_EQ(cache.cache->stats().refused_total, 0u);
}

TEST_F(Shrinking, AViewHoldsAgainWhatIsAboutToMove) {
  auto low = Low(5);
  auto sequence = OpenAlone(cache_, prompt_);
  Must(cache_.model.Feed(*sequence, prompt_));
  const UnleasedView view = Must(sequence->View(0, StreamRole::kKey)).Unleased();
  sequence.reset();
  low.reset();
  EXPECT_TRUE(view.Pin().has_value());
  std::optional<BlockListView> pinned;
  ShrinkWhile([&] { pinned = Must(view.Pin()); });
  EXPECT_EQ(cache_.cache->stats().sealed.slots_max, kFew);
  EXPECT_EQ(cache_.Resident(Join(prompt_, SomeTokens(1, 2))), 2u * kBlock);
  pinned.reset();
  cache_.cache->Trim();
  EXPECT_FALSE(view.Pin().has_value()) << "it has moved";
  EXPECT_EQ(cache_.Resident(Join(prompt_, SomeTokens(1, 2))), 2u * kBlock);
}

struct TwinCache : TestCache {
  TwinCache() : TestCache(60, Geometry::Uniform(2, 2, 16), ResidualProfile(2 * kBlock)) {}

  uint64_t twins() const { return cache->stats().twin_slots; }
};

// The slots have no holder any more, but they are not free before they are zeroed.
TEST(BetweenHolds, SlotsThatAreZeroedAreNotPinnedAgain) {
  TestCache cache(20);
  const TenantId tenant = Must(cache.cache->AddTenant({.name = "a"}));
  const auto prompt = SomeTokens(kBlock - 3, 1);
  const AcquireRequest request{.tenant = tenant, .identity = &cache.identity, .tokens = prompt};
  auto sequence = Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
  Must(cache.model.Feed(*sequence, prompt));
  const UnleasedView view = Must(sequence->View(0, StreamRole::kKey)).Unleased();
  Must(cache.cache->Erase(tenant));
  EXPECT_TRUE(view.Pin().has_value()) << "the sequence still holds it";
  {
    const Meanwhile pinned("drain: before slots are zeroed", [&] {
      const auto again = view.Pin();
      ASSERT_FALSE(again.has_value());
      EXPECT_EQ(again.error().code, ErrorCode::kNotFound);
    });
    sequence.reset();
  }
  EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
}

TEST(BetweenHolds, TwinsThatAnotherKeptMeanwhileAreNotKeptTwice) {
  TwinCache cache;
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  const auto first = OpenAlone(cache, prompt);
  auto second = OpenAlone(cache, prompt);
  {
    const Meanwhile kept("keep twins: hashed", [&] { Must(cache.model.Feed(*first, prompt)); });
    Must(cache.model.Feed(*second, prompt));
  }
  EXPECT_EQ(cache.twins(), 2u);
  second.reset();
  EXPECT_EQ(cache.Resident(prompt), 4u * kBlock);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

// The second block's twin was there at the first look, so it was not hashed, and has gone since.
TEST(BetweenHolds, TwinsThatWereNotHashedAreNotKept) {
  TwinCache cache;
  const auto shorter = SomeTokens(4 * kBlock + 1, 1);
  const auto longer = Join(shorter, SomeTokens(kBlock, 2));
  cache.Run(shorter).reset();
  ASSERT_EQ(cache.twins(), 2u);  // of the third and the fourth block
  auto sequence = OpenAlone(cache, longer);
  {
    const Meanwhile evicted("keep twins: hashed", [&] {
      cache.cache->Evict(100);
      ASSERT_EQ(cache.twins(), 0u);
    });
    Must(cache.model.Feed(*sequence, longer));
  }
  EXPECT_EQ(cache.cache->Verify().damaged, 0u) << "kept without a checksum";
  // The end of the sequence tries again.
  sequence.reset();
  EXPECT_EQ(cache.Resident(longer), 5u * kBlock);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

// The blocks stay, because another member of the domain published them; the open forms belong to
// the erased member.
TEST(BetweenHolds, TwinsOfAMemberThatWasErasedMeanwhileAreNotKept) {
  TwinCache cache;
  Must(cache.cache->AddTenant({.name = "house", .shared = true}));
  const TenantId stays = Must(cache.cache->AddTenant({.name = "a", .domain = "house"}));
  const TenantId goes = Must(cache.cache->AddTenant({.name = "b", .domain = "house"}));
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  const auto open = [&](TenantId tenant) {
    const AcquireRequest request{
        .tenant = tenant, .identity = &cache.identity, .tokens = prompt, .reuse = false};
    return Must(cache.cache->Open(Must(cache.cache->Acquire(request)), {}));
  };
  const auto first = open(stays);
  Must(cache.model.Feed(*first, prompt));
  // The sequence goes on until it reads none of its prompt open, so that the twins may be evicted.
  Must(cache.model.Feed(*first, Join(prompt, SomeTokens(3 * kBlock, 2))));
  cache.cache->Evict(100);
  ASSERT_EQ(cache.twins(), 0u);
  const auto second = open(goes);
  {
    const Meanwhile erased("keep twins: hashed", [&] { Must(cache.cache->Erase(goes)); });
    Must(cache.model.Feed(*second, prompt));
  }
  EXPECT_EQ(cache.twins(), 0u);
  EXPECT_EQ(cache.cache->stats().published_blocks, 7u) << "those of the first";
}

}  // namespace
}  // namespace quire::cache

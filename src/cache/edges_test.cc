// Values at the limits, and the state that a call leaves after an earlier failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "cache/core.h"
#include "cache/sequence/twins_test_util.h"
#include "env/faulty_memory.h"

namespace quire::cache {
namespace {

Geometry WindowOnly(uint32_t window_tokens) {
  Geometry geometry = SmallGeometry();
  geometry.groups[0].kind = LayerKind::kWindow;
  geometry.groups[0].window_tokens = window_tokens;
  return geometry;
}

/// Tokens of a tenant's prompt, in a sequence of its own.
std::unique_ptr<Sequence> RunAs(const TestCache& cache, TenantId tenant,
                                std::span<const TokenId> prompt,
                                const SequenceOptions& options = {}) {
  const AcquireRequest request{.tenant = tenant, .identity = &cache.identity, .tokens = prompt};
  auto sequence = Must(cache.cache->Open(Must(cache.cache->Acquire(request)), options));
  Must(cache.model.Feed(*sequence, prompt));
  return sequence;
}

TEST(Edges, EraseZeroesEveryFreeSlotThatItsTenantWrote) {
  constexpr uint64_t kSlots = 200;  // more than are looked at in three holds of the lock
  const Geometry geometry = SmallGeometry();
  const NumericProfile profile = NumericProfile::Uniform(Codec::kF32);
  const auto core = Must(
      Core::Make(OnTestDevice({.geometry = geometry,
                               .profile = profile,
                               .hot_bytes = (kSlots + 1) * ChargePerSlot(geometry, profile)})));
  const TenantId tenant = Must(core->AddTenant({.name = "a"}));
  const Identity identity = SomeIdentity();
  const auto prompt = SomeTokens(kSlots * kBlock - 1, 1);
  auto sequence = Must(
      core->Open(Must(core->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt})),
                 {.publish = false}));
  const FakeModel model(geometry);
  Must(model.Feed(*sequence, prompt));
  const uint64_t slots = core->stats().sealed.slots_used;
  ASSERT_EQ(slots, kSlots);
  sequence.reset();
  const auto is_zero = [&](uint32_t slot) {
    const std::span bytes(OnHost(core->state().slots().data(SlotId(slot))),
                          core->state().classes().slot_bytes(0));
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  };
  EXPECT_FALSE(is_zero(0));
  EXPECT_EQ(Must(core->Erase(tenant)).slots_zeroed, kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_TRUE(is_zero(slot)) << slot;
  EXPECT_EQ(Must(core->Erase(tenant)).slots_zeroed, 0u);
}

// Keys after an erasure differ from those before it: slots that are still held of an erased prompt
// do not prevent publishing the same prompt.
TEST(Edges, AnErasedPromptIsPublishedAgainWhileItsOldBlocksAreHeld) {
  TestCache cache(20);
  Must(cache.cache->AddTenant({.name = "house", .shared = true}));
  for (const TenantId tenant : {kDefaultTenant, Must(cache.cache->AddTenant({.name = "a"}))}) {
    const auto prompt = SomeTokens(3 * kBlock + 1, 1);
    const auto holder = RunAs(cache, tenant, prompt);
    EXPECT_EQ(Must(cache.cache->Erase(tenant)).blocks, 3u);
    const auto again = RunAs(cache, tenant, prompt);
    EXPECT_EQ(again->stats().blocks_shared, 3u);
    const Plan plan = Must(
        cache.cache->Acquire({.tenant = tenant, .identity = &cache.identity, .tokens = prompt}));
    EXPECT_EQ(plan.resident_tokens(), 3u * kBlock);
    EXPECT_EQ(cache.model.Differs(*holder, prompt), "");
  }
}

TEST(Edges, APinForAllOfTimeDoesNotEndAtOnce) {
  for (const uint64_t ttl_us : {uint64_t{0}, UINT64_MAX, UINT64_MAX - 999, UINT64_MAX - 1000}) {
    ManualClock clock(1000);
    TestCache cache(8, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, {.clock = &clock});
    const auto prompt = SomeTokens(2 * kBlock, 1);
    cache.Run(prompt).reset();
    ASSERT_EQ(Must(cache.cache->Pin({.identity = &cache.identity, .tokens = prompt}, ttl_us)), 2u);
    clock.Advance(uint64_t{1} << 60);
    cache.Resident(prompt);  // a request notices that time has passed
    EXPECT_EQ(cache.cache->stats().pinned_blocks, 2u) << ttl_us;
    EXPECT_EQ(cache.cache->Evict(10), 0u) << ttl_us;
  }
}

TEST(Edges, AFloorMayTakeAllThatOthersLeave) {
  TestCache cache(20);
  const uint64_t limit_bytes = cache.cache->options().hot_bytes;
  const auto add = [&](const std::string& name, uint64_t floor_bytes) {
    return cache.cache->AddTenant({.name = name, .floor_bytes = floor_bytes});
  };
  EXPECT_EQ(add("more", limit_bytes + 1).error().code, ErrorCode::kNoSpace);
  Must(add("some", 3 * cache.charge_bytes));
  EXPECT_EQ(add("more", limit_bytes - 3 * cache.charge_bytes + 1).error().code,
            ErrorCode::kNoSpace);
  Must(add("rest", limit_bytes - 3 * cache.charge_bytes));
  EXPECT_EQ(add("more", 1).error().code, ErrorCode::kNoSpace);
  Must(add("none", 0));
}

TEST(Edges, MemoryThatAFailedResizeCommittedGoesBack) {
  const auto host = MakeHostMemory(/*huge_pages=*/false);
  uint64_t failures = 0;
  for (uint64_t failing = 0;; ++failing) {
    FaultyMemory memory(*host, std::numeric_limits<uint64_t>::max());
    const auto core = Must(Core::Make({.geometry = Geometry::Uniform(2, 2, 64),
                                       .profile = ResidualProfile(kBlock),
                                       .hot_bytes = 1 << 20,
                                       .hot_bytes_max = 3 << 20,
                                       .memory = &memory}));
    const auto before = memory.committed_pages();
    memory.FailCall(failing);
    if (core->Resize(3 << 20)) break;
    ++failures;
    EXPECT_EQ(memory.committed_pages(), before) << "commit " << failing << " failed";
  }
  EXPECT_EQ(failures, 2u) << "sealed and open";
}

TEST(Edges, PublishesAgainOnceItIsBackBeforeTheDamage) {
  TestCache cache(20);
  const auto prompt = SomeTokens(2 * kBlock, 1);
  auto sequence = cache.Run(prompt);
  FlipBit(*sequence, 1);
  EXPECT_EQ(cache.cache->Verify().damaged, 1u);
  Must(cache.model.Feed(*sequence, Join(prompt, SomeTokens(kBlock, 2))));
  EXPECT_EQ(cache.cache->stats().published_total, 2u) << "nothing after the damaged block";
  Must(sequence->Rollback(kBlock));
  const auto other = Join(std::span(prompt).first(kBlock), SomeTokens(2 * kBlock, 3));
  Must(cache.model.Feed(*sequence, other));
  EXPECT_EQ(sequence->stats().blocks_shared, 3u);
  EXPECT_EQ(cache.Resident(Join(other, SomeTokens(1, 4))), 3u * kBlock);
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

// Back at its start, a sequence keeps blocks again that its window had left behind.
TEST(Edges, AWindowThatGoesBackLooksBackAgain) {
  for (const bool publish : {true, false}) {
    TestCache cache(40, WindowOnly(2 * kBlock));
    const auto prompt = SomeTokens(10 * kBlock, 1);
    const auto sequence = cache.Run(prompt, {.step_tokens = kBlock, .publish = publish});
    Must(sequence->Rollback(0));
    const auto other = SomeTokens(2 * kBlock, 2);
    Must(cache.model.Feed(*sequence, other));
    EXPECT_EQ(cache.model.Differs(*sequence, other), "");
    EXPECT_NE(Must(sequence->View(0, StreamRole::kKey)).slots()[0], nullptr);
  }
}

// A domain without room keeps a sequence from publishing, so its window passes the last block that
// it published. The open slots of that block stay, but do not keep the block in the index: its id
// may name another block, which the sequence's calls must not reach.
TEST(Edges, AnOpenSlotDoesNotNameABlockThatItsWindowPassed) {
  for (const uint8_t priority : {0, 100}) {
    TestCache cache(200, WindowOnly(kBlock), ResidualProfile(10 * kBlock), 0,
                    {.policy = "priority"});
    // Two blocks and one twin: a sealed and an open slot together are charge_bytes.
    const uint64_t quota_bytes = 2 * cache.charge_bytes - 1;
    Must(cache.cache->AddTenant({.name = "house", .quota_bytes = quota_bytes, .shared = true}));
    const TenantId a = Must(cache.cache->AddTenant({.name = "a", .domain = "house"}));
    const TenantId b = Must(cache.cache->AddTenant({.name = "b", .domain = "house"}));
    const TenantId other = Must(cache.cache->AddTenant({.name = "c"}));
    const auto holder = RunAs(cache, b, SomeTokens(kBlock, 9));
    const auto prompt = SomeTokens(8 * kBlock, 1);
    const auto sequence =
        RunAs(cache, a, std::span(prompt).first(kBlock), {.reserve_tokens = 12 * kBlock});
    for (uint64_t end = 2 * kBlock; end <= prompt.size(); end += kBlock) {
      Must(cache.model.Feed(*sequence, std::span(prompt).first(end)));
    }
    ASSERT_EQ(cache.cache->stats().published_total, 2u);
    cache.cache->Evict(100);
    ASSERT_EQ(cache.cache->stats().published_blocks, 1u) << "the holder's alone";

    // The other tenant's blocks take the numbers that are free.
    std::vector<std::vector<TokenId>> prompts;
    std::vector<std::unique_ptr<Sequence>> others;
    for (uint64_t seed = 11; seed < 14; ++seed) {
      prompts.push_back(SomeTokens(kBlock, seed));
      others.push_back(RunAs(cache, other, prompts.back()));
    }
    Must(sequence->Retain({.begin_token = 0, .priority = priority}));
    for (auto& ended : others) ended.reset();
    const auto is_there = [&](const std::vector<TokenId>& tokens) {
      const auto longer = Join(tokens, SomeTokens(1, 5));
      return Must(cache.cache->Acquire(
                      {.tenant = other, .identity = &cache.identity, .tokens = longer}))
                 .resident_tokens() > 0;
    };
    // The other tenant's blocks all have the same priority, so its oldest goes first.
    uint64_t left = 3;
    while (Must(cache.cache->tenant_stats(other)).published_blocks == left) cache.cache->Evict(1);
    --left;
    EXPECT_FALSE(is_there(prompts[0])) << int{priority};
    while (Must(cache.cache->tenant_stats(other)).published_blocks == left) cache.cache->Evict(1);
    EXPECT_TRUE(is_there(prompts[2])) << int{priority};
  }
}

}  // namespace
}  // namespace quire::cache

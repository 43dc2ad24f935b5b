// Pins and priorities: which blocks they keep, until when, and for which tenant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "cache/test_util.h"
#include "evict/policies.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPinsSecond_us = 1'000'000;

struct PinsWorld {
  explicit PinsWorld(uint64_t slots, const std::string& policy = "lru",
                     const Geometry& geometry = SmallGeometry())
      : model(geometry), charge_bytes(ChargePerSlot(geometry, Profile(), policy)) {
    cache = MakeCache({.geometry = geometry,
                       .profile = Profile(),
                       .hot_bytes = slots * charge_bytes + charge_bytes - 1,
                       .clock = &clock,
                       .policy = policy});
  }
  static NumericProfile Profile() { return NumericProfile::Uniform(Codec::kF16); }

  AcquireRequest Request(std::span<const TokenId> tokens, TenantId tenant = kDefaultTenant) const {
    return {.tenant = tenant, .identity = &identity, .tokens = tokens};
  }
  std::unique_ptr<Sequence> Open(std::span<const TokenId> prompt,
                                 TenantId tenant = kDefaultTenant) {
    return Must(cache->Open(Must(cache->Acquire(Request(prompt, tenant))), {}));
  }
  std::unique_ptr<Sequence> Run(std::span<const TokenId> prompt, TenantId tenant = kDefaultTenant) {
    auto sequence = Open(prompt, tenant);
    Must(model.Feed(*sequence, prompt));
    return sequence;
  }
  uint64_t Resident(std::span<const TokenId> prompt, TenantId tenant = kDefaultTenant) {
    return Must(cache->Acquire(Request(prompt, tenant))).resident_tokens() / kBlock;
  }
  /// Uses room for so many blocks, and leaves them as the most recent.
  void Fill(uint64_t blocks) { Run(SomeTokens(blocks * kBlock, 1000 + fills++)); }

  ManualClock clock{50 * kPinsSecond_us};
  FakeModel model;
  uint64_t charge_bytes;
  Identity identity = SomeIdentity();
  std::unique_ptr<Cache> cache;
  uint64_t fills = 0;
};

class PinsUnder : public testing::TestWithParam<std::string_view> {};

TEST_P(PinsUnder, KeepAPathUnderEveryPolicy) {
  PinsWorld world(/*slots=*/12, std::string(GetParam()));
  const auto system = SomeTokens(3 * kBlock, 1);
  const auto prompt = Join(system, SomeTokens(2 * kBlock, 2));
  world.Run(prompt);
  EXPECT_EQ(Must(world.cache->Pin(world.Request(system), /*ttl_us=*/0)), 3u);
  EXPECT_EQ(world.cache->stats().pinned_blocks, 3u);
  EXPECT_EQ(world.cache->stats().evictable_blocks, 2u);
  for (int i = 0; i < 20; ++i) world.Fill(9);
  EXPECT_EQ(world.Resident(prompt), 3u);
  EXPECT_EQ(world.cache->Evict(100), 9u);
  EXPECT_EQ(world.Resident(prompt), 3u);
  const auto stats = Must(world.cache->tenant_stats(kDefaultTenant));
  EXPECT_EQ(stats.pinned_blocks, 3u);
  EXPECT_EQ(stats.pinned_bytes, 3 * world.charge_bytes);
  Must(world.cache->Unpin(world.Request(system)));
  EXPECT_EQ(world.cache->stats().pinned_blocks, 0u);
  EXPECT_EQ(Must(world.cache->tenant_stats(kDefaultTenant)).pinned_bytes, 0u);
  EXPECT_EQ(world.Resident(prompt), 3u) << "it stays while there is room";
  EXPECT_EQ(world.cache->Evict(100), 3u);
}

INSTANTIATE_TEST_SUITE_P(All, PinsUnder, testing::ValuesIn(evict::PolicyNames()),
                         [](const auto& name) { return std::string(name.param); });

TEST(Pins, AreCountedAndEndAtTheLatestTime) {
  PinsWorld world(/*slots=*/10);
  const auto stem = SomeTokens(2 * kBlock, 1);
  const auto longer = Join(stem, SomeTokens(2 * kBlock, 2));
  world.Run(longer);
  Must(world.cache->Pin(world.Request(stem), 10 * kPinsSecond_us));
  Must(world.cache->Pin(world.Request(stem), 5 * kPinsSecond_us));
  Must(world.cache->Pin(world.Request(longer), 2 * kPinsSecond_us));
  EXPECT_EQ(world.cache->stats().pinned_blocks, 4u) << "a shared block counts once";
  Must(world.cache->Unpin(world.Request(stem)));
  EXPECT_EQ(world.cache->Evict(10), 0u);
  world.clock.Advance(2 * kPinsSecond_us - 1);
  EXPECT_EQ(world.cache->Evict(10), 0u);
  world.clock.Advance(1);
  EXPECT_EQ(world.cache->Evict(10), 2u) << "of the longer path what only it had";
  world.clock.Advance(8 * kPinsSecond_us - 1);
  EXPECT_EQ(world.cache->Evict(10), 0u) << "the first call asked for ten seconds";
  world.clock.Advance(1);
  EXPECT_EQ(world.cache->Evict(10), 2u);
  const auto gone = world.cache->Unpin(world.Request(stem));
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
}

TEST(Pins, ErrorsNameTheCall) {
  PinsWorld world(/*slots=*/10);
  EXPECT_THAT(world.cache->Pin({}, /*ttl_us=*/0).error().message, testing::StartsWith("pin: "));
  EXPECT_THAT(world.cache->Unpin({}).error().message, testing::StartsWith("unpin: "));
}

TEST(Pins, MakeRoomWhenTheyAreOver) {
  PinsWorld world(/*slots=*/6);
  const auto stem = SomeTokens(4 * kBlock, 1);
  world.Run(stem);
  Must(world.cache->Pin(world.Request(stem), kPinsSecond_us));
  const auto prompt = SomeTokens(4 * kBlock, 2);
  const auto refused = world.cache->Open(Must(world.cache->Acquire(world.Request(prompt))), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  world.clock.Advance(kPinsSecond_us);
  world.Run(prompt);
}

TEST(Pins, RefuseMissingBlocksAndTooManyBytes) {
  PinsWorld world(/*slots=*/12);
  const TenantId small = Must(world.cache->AddTenant(
      {.name = "small", .quota_bytes = 4 * world.charge_bytes + world.charge_bytes / 2}));
  Must(world.cache->AddTenant({.name = "floor", .floor_bytes = 7 * world.charge_bytes}));
  const auto stem = SomeTokens(6 * kBlock, 1);
  const auto pin = [&](std::span<const TokenId> tokens, TenantId tenant) {
    return world.cache->Pin(world.Request(tokens, tenant), 0);
  };
  const auto brief = pin(std::span(stem).first(kBlock - 1), kDefaultTenant);
  ASSERT_FALSE(brief.has_value());
  EXPECT_EQ(brief.error().code, ErrorCode::kInvalidArgument);
  world.Run(std::span(stem).first(3 * kBlock));
  const auto partly = pin(stem, kDefaultTenant);
  ASSERT_FALSE(partly.has_value());
  EXPECT_EQ(partly.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(partly.error().message, HasSubstr("3 of 6 blocks"));
  world.Run(stem);
  const auto before = ToJson(world.cache->stats());
  const auto refused = pin(stem, kDefaultTenant);
  ASSERT_FALSE(refused.has_value()) << "a floor of 7 of 12";
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("\"default\""));
  EXPECT_EQ(ToJson(world.cache->stats()), before);
  EXPECT_TRUE(pin(std::span(stem).first(5 * kBlock), kDefaultTenant).has_value());
  const auto own = SomeTokens(4 * kBlock, 2);
  world.Run(own, small);
  EXPECT_TRUE(pin(own, small).has_value());
  // All of its quota is pinned now: its next request has no room.
  const auto more = world.cache->Open(
      Must(world.cache->Acquire(world.Request(SomeTokens(kBlock, 3), small))), {});
  ASSERT_FALSE(more.has_value());
  EXPECT_THAT(more.error().message, HasSubstr("quota of tenant \"small\""));
}

TEST(Pins, OfOneTenantAreNotAnothers) {
  PinsWorld world(/*slots=*/20);
  const TenantId a = Must(world.cache->AddTenant({.name = "a"}));
  const TenantId b = Must(world.cache->AddTenant({.name = "b"}));
  const auto prompt = SomeTokens(3 * kBlock, 1);
  world.Run(prompt, a);
  const auto of_b = world.cache->Pin(world.Request(prompt, b), 0);
  ASSERT_FALSE(of_b.has_value());
  EXPECT_EQ(of_b.error().code, ErrorCode::kNotFound);
  world.Run(prompt, b);
  Must(world.cache->Pin(world.Request(prompt, a), 0));
  EXPECT_FALSE(world.cache->Unpin(world.Request(prompt, b)).has_value());
  EXPECT_EQ(Must(world.cache->tenant_stats(b)).pinned_blocks, 0u);
  EXPECT_EQ(Must(world.cache->tenant_stats(a)).pinned_blocks, 3u);

  // In a domain the blocks are the same ones; the pins are not.
  Must(world.cache->AddTenant({.name = "team", .shared = true}));
  const TenantId c = Must(world.cache->AddTenant({.name = "c", .domain = "team"}));
  const TenantId d = Must(world.cache->AddTenant({.name = "d", .domain = "team"}));
  world.Run(prompt, c);
  Must(world.cache->Pin(world.Request(prompt, c), 0));
  EXPECT_FALSE(world.cache->Unpin(world.Request(prompt, d)).has_value());
  Must(world.cache->Pin(world.Request(prompt, d), 0));
  Must(world.cache->Unpin(world.Request(prompt, c)));
  const TenantId team = Must(world.cache->FindTenant("team"));
  EXPECT_EQ(Must(world.cache->tenant_stats(team)).pinned_blocks, 3u);
  Must(world.cache->Unpin(world.Request(prompt, d)));
  EXPECT_EQ(Must(world.cache->tenant_stats(team)).pinned_blocks, 0u);
}

TEST(Pins, EndWithErasedOrDamagedBlocks) {
  PinsWorld world(/*slots=*/20);
  const TenantId a = Must(world.cache->AddTenant({.name = "a"}));
  const auto prompt = SomeTokens(3 * kBlock, 1);
  world.Run(prompt, a);
  Must(world.cache->Pin(world.Request(prompt, a), 0));
  EXPECT_EQ(Must(world.cache->Erase(a)).slots_pending, 0u);
  EXPECT_EQ(world.cache->stats().published_blocks, 0u);
  EXPECT_EQ(world.cache->stats().pinned_blocks, 0u);

  auto sequence = world.Run(prompt);
  Must(world.cache->Pin(world.Request(prompt), 0));
  FlipBit(*sequence, 1);
  sequence.reset();
  EXPECT_EQ(world.cache->Verify().damaged, 1u);
  EXPECT_EQ(world.cache->stats().pinned_blocks, 0u);
  EXPECT_EQ(world.cache->stats().published_blocks, 1u) << "what stands before the damage";
}

// Layers that look back two blocks: the blocks that the pin found stay, though the window of the
// sequence that computed them has passed them.
TEST(Pins, KeepSlotsOutsideWindows) {
  PinsWorld world(/*slots=*/16, "lru",
                  {{{.kind = LayerKind::kWindow,
                     .layers = {0, 1},
                     .window_tokens = 2 * kBlock,
                     .streams = {{StreamRole::kKey, 2, 4}, {StreamRole::kValue, 2, 4}}}}});
  const auto stem = SomeTokens(4 * kBlock, 1);
  auto sequence = world.Run(stem);
  Must(world.cache->Pin(world.Request(stem), 0));
  sequence.reset();
  for (int i = 0; i < 10; ++i) world.Fill(5);
  world.cache->Evict(100);
  const auto next = Join(stem, SomeTokens(1, 2));
  EXPECT_EQ(world.Resident(next), 4u);
  Must(world.cache->Unpin(world.Request(stem)));
  world.cache->Evict(100);
  EXPECT_EQ(world.cache->stats().sealed.slots_used, 0u);
}

// Random requests, pins and times against a list of pinned paths.
TEST(Pins, NothingPinnedIsEverMissing) {
  for (const std::string_view policy : {"lru", "quire", "priority"}) {
    PinsWorld world(/*slots=*/24, std::string(policy));
    Prng prng(3);
    struct Pinned {
      std::vector<TokenId> tokens;
      uint64_t until_us;
    };
    std::vector<Pinned> pinned;
    uint64_t pins = 0;
    for (int step = 0; step < 2000; ++step) {
      world.clock.Advance(prng.NextBelow(kPinsSecond_us));
      std::erase_if(pinned, [&](const Pinned& pin) {
        return pin.until_us != 0 && pin.until_us <= world.clock.NowMicros();
      });
      const auto stem = SomeTokens(2 * kBlock, prng.NextBelow(3));
      auto prompt = Join(stem, SomeTokens(1 + prng.NextBelow(4 * kBlock), prng.NextBelow(40)));
      const auto choice = prng.NextBelow(8);
      if (choice == 0 && !pinned.empty()) {
        const uint64_t i = prng.NextBelow(pinned.size());
        Must(world.cache->Unpin(world.Request(pinned[i].tokens)));
        std::erase_if(pinned, [tokens = pinned[i].tokens](const Pinned& pin) {
          return pin.tokens == tokens;  // each is pinned once
        });
      } else {
        auto plan = Must(world.cache->Acquire(world.Request(prompt)));
        const auto sequence = world.cache->Open(std::move(plan), {});
        if (sequence) {
          Must(world.model.Feed(**sequence, prompt));
          prompt.resize(prompt.size() / kBlock * kBlock);
          const bool known =
              std::ranges::any_of(pinned, [&](const Pinned& pin) { return pin.tokens == prompt; });
          if (choice == 1 && !known && pinned.size() < 4) {
            const uint64_t ttl_us =
                prng.NextChance(2) ? 0 : 1 + prng.NextBelow(20 * kPinsSecond_us);
            Must(world.cache->Pin(world.Request(prompt), ttl_us));
            pinned.push_back({prompt, ttl_us == 0 ? 0 : world.clock.NowMicros() + ttl_us});
            ++pins;
          }
        }
      }
      for (const Pinned& pin : pinned) {
        ASSERT_EQ(world.Resident(Join(pin.tokens, SomeTokens(1, 7))), pin.tokens.size() / kBlock)
            << policy << ", step " << step;
      }
    }
    EXPECT_GT(pins, 30u);
    EXPECT_GT(world.cache->stats().evicted_total, 500u);
    for (const Pinned& pin : pinned) Must(world.cache->Unpin(world.Request(pin.tokens)));
    world.cache->Evict(100);
    EXPECT_EQ(world.cache->stats().sealed.slots_used, 0u);
  }
}

// The early blocks of a pinned path may have no bytes any more: they are kept only for the blocks
// after them, and leave the index with them.
TEST(Pins, EndWithAnErasureAlthoughAWindowPassedTheirFirstBlocks) {
  Geometry geometry = SmallGeometry();
  geometry.groups[0].kind = LayerKind::kWindow;
  geometry.groups[0].window_tokens = 2 * kBlock;
  for (const bool unpin : {false, true}) {
    PinsWorld world(40, "lru", geometry);
    const TenantId tenant = Must(world.cache->AddTenant({.name = "a"}));
    const auto prompt = SomeTokens(12 * kBlock, 1);
    auto sequence = Must(world.cache->Open(
        Must(world.cache->Acquire(world.Request(prompt, tenant))), {.step_tokens = kBlock}));
    for (uint64_t end = kBlock; end <= prompt.size(); end += kBlock) {
      Must(world.model.Feed(*sequence, std::span(prompt).first(end)));
    }
    for (int i = 0; i < 60; ++i) world.Fill(4);
    ASSERT_GT(world.cache->stats().hollow_blocks, 0u);
    EXPECT_EQ(Must(world.cache->Pin(world.Request(prompt, tenant), 0)), 12u);
    sequence.reset();
    if (unpin) {
      Must(world.cache->Unpin(world.Request(prompt, tenant)));
    } else {
      EXPECT_EQ(Must(world.cache->Erase(tenant)).blocks, 12u);
      EXPECT_EQ(Must(world.cache->tenant_stats(tenant)).published_blocks, 0u);
      EXPECT_EQ(Must(world.cache->tenant_stats(tenant)).erase_pending_slots, 0u);
    }
    EXPECT_EQ(world.cache->stats().pinned_blocks, 0u);
    EXPECT_EQ(Must(world.cache->tenant_stats(tenant)).pinned_bytes, 0u);
  }
}

}  // namespace
}  // namespace quire::cache

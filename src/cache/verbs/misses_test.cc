// Every missing token has a reason, and it is the true one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

#include "cache/below/test_store.h"
#include "cache/state/ghosts.h"
#include "cache/test_util.h"
#include "env/clock.h"
#include "evict/policies.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;

struct MissesWorld {
  explicit MissesWorld(uint64_t slots, std::string_view policy = "lru")
      : charge_bytes(ChargePerSlot(SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                                   std::string(policy))),
        cache(MakeCache({.geometry = SmallGeometry(),
                         .profile = NumericProfile::Uniform(Codec::kF16),
                         .hot_bytes = slots * charge_bytes,
                         .clock = &clock,
                         .policy = std::string(policy)})) {}

  std::unique_ptr<Sequence> Run(std::span<const TokenId> prompt, TenantId tenant = kDefaultTenant) {
    auto sequence = Must(cache->Open(
        Must(cache->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt})), {}));
    Must(model.Feed(*sequence, prompt));
    return sequence;
  }
  std::vector<MissRun> Missing(std::span<const TokenId> prompt, bool reuse = true,
                               TenantId tenant = kDefaultTenant) {
    const Plan plan = Must(cache->Acquire(
        {.tenant = tenant, .identity = &identity, .tokens = prompt, .reuse = reuse}));
    uint64_t tokens = 0;
    for (const MissRun& run : plan.missing()) tokens += run.tokens;
    EXPECT_EQ(tokens, plan.missing_tokens());
    EXPECT_EQ(plan.reason(), plan.missing().front().reason);
    return {plan.missing().begin(), plan.missing().end()};
  }
  uint64_t Missed(MissReason reason, TenantId tenant = kDefaultTenant) const {
    return Must(cache->tenant_stats(tenant)).missed_tokens[static_cast<uint8_t>(reason)];
  }

  ManualClock clock{100};
  FakeModel model{SmallGeometry()};
  Identity identity = SomeIdentity();
  uint64_t charge_bytes;
  std::unique_ptr<Cache> cache;
};

MissRun Partial(uint64_t tokens) { return {.reason = MissReason::kPartialBlock, .tokens = tokens}; }

// A template that puts the date into each prompt: all blocks after the date are missing for the
// same reason.
TEST(Misses, WhereAPromptDiffersFromWhatIsCached) {
  MissesWorld world(40);
  const std::vector<TokenId> prompt = SomeTokens(6 * kBlock + 1, 1);
  const auto differs_at = [&](const std::vector<TokenId>& asked, TenantId tenant = kDefaultTenant) {
    return Must(world.cache->Acquire(
                    {.tenant = tenant, .identity = &world.identity, .tokens = asked}))
        .differs_at();
  };
  EXPECT_EQ(differs_at(prompt), std::nullopt);  // nothing is cached
  world.Run(prompt).reset();
  EXPECT_EQ(differs_at(prompt), std::nullopt);  // nothing differs
  for (const uint64_t at : {uint64_t{0}, uint64_t{5}, uint64_t{kBlock}, 3 * kBlock + uint64_t{7}}) {
    std::vector<TokenId> other = prompt;
    other[at] += 1;
    EXPECT_EQ(differs_at(other), at);
  }
  std::vector<TokenId> longer = prompt;
  longer.resize(6 * kBlock);
  const std::vector<TokenId> more = SomeTokens(3 * kBlock, 2);
  longer.insert(longer.end(), more.begin(), more.end());
  EXPECT_EQ(differs_at(longer), std::nullopt);  // the cached prompt ends there
  // Of several branches, the one with the most tokens in common.
  std::vector<TokenId> branch = prompt;
  branch[2 * kBlock + 3] += 1;
  world.Run(branch).reset();
  branch[2 * kBlock + 9] += 1;
  EXPECT_EQ(differs_at(branch), 2 * kBlock + 9);
  // Prompts of other tenants stay secret.
  const TenantId stranger = Must(world.cache->AddTenant({.name = "stranger"}));
  EXPECT_EQ(differs_at(branch, stranger), std::nullopt);
}

TEST(Misses, NeverSeenAndShorterThanABlock) {
  MissesWorld world(10);
  const auto prompt = SomeTokens(2 * kBlock + 5, 1);
  EXPECT_THAT(
      world.Missing(prompt),
      ElementsAre(MissRun{.reason = MissReason::kNeverSeen, .tokens = 2 * kBlock}, Partial(5)));
  EXPECT_THAT(world.Missing(std::span(prompt).first(kBlock)), ElementsAre(Partial(kBlock)))
      << "the last token is always computed";
  world.Run(prompt).reset();
  EXPECT_THAT(world.Missing(prompt), ElementsAre(Partial(5)));
  EXPECT_THAT(world.Missing(prompt, /*reuse=*/false),
              ElementsAre(MissRun{.reason = MissReason::kNotAsked, .tokens = prompt.size()}));
  EXPECT_EQ(world.Missed(MissReason::kNeverSeen), 2u * 2 * kBlock);
  EXPECT_EQ(world.Missed(MissReason::kPartialBlock), 5u + kBlock + 5 + 5);
  EXPECT_EQ(world.Missed(MissReason::kNotAsked), prompt.size());
}

TEST(Misses, EvictedAtATime) {
  MissesWorld world(20);
  const auto prompt = SomeTokens(6 * kBlock + 1, 1);
  world.Run(prompt).reset();
  world.clock.Advance(50);
  EXPECT_EQ(world.cache->Evict(2), 2u);
  world.clock.Advance(50);
  EXPECT_EQ(world.cache->Evict(1), 1u);
  EXPECT_THAT(
      world.Missing(prompt),
      ElementsAre(MissRun{.reason = MissReason::kEvicted, .tokens = 3 * kBlock, .gone_us = 200},
                  Partial(1)));
  // New tokens after evicted ones were never seen.
  const auto other = Join(std::span(prompt).first(4 * kBlock), SomeTokens(2 * kBlock, 2));
  EXPECT_THAT(
      world.Missing(other),
      ElementsAre(MissRun{.reason = MissReason::kEvicted, .tokens = kBlock, .gone_us = 200},
                  MissRun{.reason = MissReason::kNeverSeen, .tokens = kBlock}, Partial(kBlock)));
  // Back again, it is not missing.
  world.Run(prompt).reset();
  EXPECT_THAT(world.Missing(prompt), ElementsAre(Partial(1)));
}

TEST(Misses, UnderAnotherAdapterOrModel) {
  MissesWorld world(20);
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  world.Run(prompt).reset();
  const auto longer = Join(std::span(prompt).first(4 * kBlock), SomeTokens(kBlock + 1, 2));
  for (const auto& change : std::vector<std::function<void(Identity&)>>{
           [](Identity& i) { i.adapter = "lora"; }, [](Identity& i) { i.weights[0] ^= 1; },
           [](Identity& i) { i.position_encoding = "rope:theta=500000"; }}) {
    world.identity = SomeIdentity();
    change(world.identity);
    EXPECT_THAT(
        world.Missing(longer),
        ElementsAre(MissRun{.reason = MissReason::kOtherProfile, .tokens = 4 * kBlock},
                    MissRun{.reason = MissReason::kNeverSeen, .tokens = kBlock}, Partial(1)));
  }
  EXPECT_EQ(world.Missed(MissReason::kOtherProfile), 3u * 4 * kBlock);
}

TEST(Misses, ExpiredAfterTheTenantsTtl) {
  MissesWorld world(20);
  const TenantId tenant = Must(world.cache->AddTenant({.name = "brief", .ttl_us = 1000}));
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  const auto held = SomeTokens(2 * kBlock + 1, 2);
  world.Run(prompt, tenant).reset();
  world.clock.Advance(999);
  EXPECT_THAT(world.Missing(prompt, true, tenant), ElementsAre(Partial(1))) << "and is used";
  const auto holder = world.Run(held, tenant);
  world.clock.Advance(999);
  EXPECT_THAT(world.Missing(prompt, true, tenant), ElementsAre(Partial(1)));
  world.clock.Advance(1000);
  EXPECT_THAT(
      world.Missing(prompt, true, tenant),
      ElementsAre(MissRun{.reason = MissReason::kExpired, .tokens = 3 * kBlock, .gone_us = 3098},
                  Partial(1)));
  EXPECT_THAT(world.Missing(held, true, tenant), ElementsAre(Partial(1))) << "somebody uses it";
  EXPECT_EQ(world.Missed(MissReason::kExpired, tenant), 3u * kBlock);
}

// The policy's last victim may be the least recently used block.
TEST(Misses, ExpiredUnderEveryPolicy) {
  for (const std::string_view policy : evict::PolicyNames()) {
    SCOPED_TRACE(policy);
    MissesWorld world(20, policy);
    const TenantId tenant = Must(world.cache->AddTenant({.name = "brief", .ttl_us = 1000}));
    const auto often = SomeTokens(3 * kBlock + 1, 1);
    const auto once = SomeTokens(2 * kBlock + 1, 2);
    for (int i = 0; i < 5; ++i) world.Run(often, tenant).reset();
    world.clock.Advance(600);
    world.Run(once, tenant).reset();
    world.clock.Advance(600);
    EXPECT_THAT(
        world.Missing(often, true, tenant),
        ElementsAre(MissRun{.reason = MissReason::kExpired, .tokens = 3 * kBlock, .gone_us = 1300},
                    Partial(1)));
    EXPECT_THAT(world.Missing(once, true, tenant), ElementsAre(Partial(1)));
    EXPECT_EQ(world.cache->stats().published_blocks, 2u);
    EXPECT_EQ(world.cache->Evict(10), 2u);
    EXPECT_EQ(world.cache->stats().hot_bytes_used, 0u);
  }
}

TEST(Misses, FailedVerificationIsRemembered) {
  MissesWorld world(20);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  auto holder = world.Run(prompt);
  FlipBit(*holder, 1);
  EXPECT_EQ(world.cache->Verify().damaged, 1u);
  EXPECT_EQ(world.Missing(prompt).front(),
            (MissRun{.reason = MissReason::kDamaged, .tokens = 2 * kBlock}));
  holder.reset();
  EXPECT_EQ(world.Missing(prompt).front(),
            (MissRun{.reason = MissReason::kDamaged, .tokens = 2 * kBlock, .gone_us = 100}));
}

TEST(Misses, BlocksBehindADamagedOneDidNotFailToLoad) {
  const std::vector<TokenId> prompt = SomeTokens(10 * kBlock + 5, 1);
  TestStore store;
  CacheOptions more;
  more.store = store.store.get();
  more.clock = &store.clock;
  TestCache test(64, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, more);
  test.Run(prompt).reset();
  Must(store.store->Flush());
  while (test.cache->Evict(100) > 0) {
  }
  const auto front = test.Run(std::span(prompt).first(4 * kBlock));
  Ticket ticket = Must(test.cache->Load(test.Acquire(prompt), {}));
  FlipBit(*front, 3);
  EXPECT_EQ(test.cache->Verify().damaged, 1);
  ASSERT_TRUE(ticket.WaitFor(1'000'000));
  const Plan plan = ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), 3 * kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kDamaged);
}

TEST(Misses, NoReasonRevealsBlocksOfAnotherTenant) {
  MissesWorld world(20);
  const TenantId a = Must(world.cache->AddTenant({.name = "a"}));
  const TenantId b = Must(world.cache->AddTenant({.name = "b"}));
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  const MissRun never{.reason = MissReason::kNeverSeen, .tokens = 3 * kBlock};
  world.Run(prompt, a).reset();
  EXPECT_THAT(world.Missing(prompt, true, b), ElementsAre(never, Partial(1)));
  world.cache->Evict(100);
  EXPECT_THAT(world.Missing(prompt, true, b), ElementsAre(never, Partial(1)));
  EXPECT_EQ(world.Missing(prompt, true, a).front().reason, MissReason::kEvicted);
  EXPECT_EQ(world.Missed(MissReason::kEvicted, b), 0u);
  EXPECT_EQ(world.Missed(MissReason::kEvicted, a), 3u * kBlock);
  EXPECT_EQ(Must(world.cache->tenant_stats(b)).lookup_tokens, 2u * prompt.size());
}

TEST(Misses, GhostsAreBounded) {
  Ghosts ghosts;
  ghosts.SetCapacity(100);
  const auto key = [](uint64_t i) {
    Digest digest{};
    std::memcpy(digest.data(), &i, sizeof(i));
    return digest;
  };
  for (uint64_t i = 0; i < 1000; ++i) {
    ghosts.Add(key(i), {.gone_us = i});
    ghosts.Add(key(i / 2), {.gone_us = i});
    EXPECT_LE(ghosts.size(), 100u);
  }
  EXPECT_EQ(ghosts.Find(key(999))->gone_us, 999u);
  EXPECT_FALSE(ghosts.Find(key(400)).has_value());
  ghosts.Remove(key(999));
  EXPECT_FALSE(ghosts.Find(key(999)).has_value());
  for (uint64_t i = 0; i < 1000; ++i) {
    ghosts.Add(key(1), {.gone_us = i});
    ghosts.Remove(key(1));
  }
  ghosts.Add(key(1), {.gone_us = 7});
  EXPECT_EQ(ghosts.Find(key(1))->gone_us, 7u);
  ghosts.SetCapacity(0);
  EXPECT_TRUE(ghosts.empty());
}

TEST(Misses, StandInTheStatisticsByName) {
  MissesWorld world(10);
  (void)world.Missing(SomeTokens(2 * kBlock + 5, 1));
  const TenantStats stats = Must(world.cache->tenant_stats(kDefaultTenant));
  EXPECT_THAT(ToJson(stats), ::testing::HasSubstr(R"("never_seen":32,"partial_block":5)"));
  EXPECT_THAT(ToText(stats), ::testing::ContainsRegex("missed_tokens.never_seen +32\n"));
}

}  // namespace
}  // namespace quire::cache

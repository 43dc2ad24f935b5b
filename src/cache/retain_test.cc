// Priorities for ranges of tokens, as serving engines give them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRetainSecond_us = 1'000'000;

struct RetainWorld : TestCache {
  explicit RetainWorld(uint64_t slots, const std::string& policy = "priority")
      : TestCache(slots, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), /*slots_max=*/0,
                  {.policy = policy}) {
    cache = MakeCache({.geometry = SmallGeometry(),
                       .profile = NumericProfile::Uniform(Codec::kF16),
                       .hot_bytes = slots * charge_bytes + charge_bytes - 1,
                       .clock = &clock,
                       .policy = policy});
  }
  uint64_t Blocks(std::span<const TokenId> prompt) {
    return Resident(Join(prompt, SomeTokens(1, 99))) / kBlock;
  }

  ManualClock clock{50 * kRetainSecond_us};
};

TEST(Retain, TheLowestPriorityGoesFirst) {
  RetainWorld world(/*slots=*/20);
  const auto low = SomeTokens(2 * kBlock, 1);
  const auto plain = SomeTokens(2 * kBlock, 2);
  const auto high = SomeTokens(2 * kBlock, 3);
  Must(world.Run(high)->Retain({.priority = 80}));
  world.Run(plain);
  Must(world.Run(low)->Retain({.priority = 20}));
  EXPECT_EQ(world.cache->Evict(3), 3u);
  EXPECT_EQ(world.Blocks(low), 0u) << "though it is the most recent";
  EXPECT_EQ(world.Blocks(plain), 1u);
  EXPECT_EQ(world.Blocks(high), 2u) << "though it is the oldest";
}

TEST(Retain, HoldsForBlocksThatAreYetToCome) {
  RetainWorld world(/*slots=*/20);
  const auto prompt = SomeTokens(4 * kBlock, 1);
  auto sequence = world.Open(prompt);
  Must(sequence->Retain({.begin_token = 0, .end_token = 2 * kBlock - 1, .priority = 90}));
  Must(sequence->Retain({.begin_token = 3 * kBlock, .priority = 10}));
  Must(world.model.Feed(*sequence, prompt));
  sequence.reset();
  const auto other = SomeTokens(3 * kBlock, 2);
  world.Run(other);
  EXPECT_EQ(world.cache->Evict(1), 1u);
  EXPECT_EQ(world.Blocks(prompt), 3u) << "the last block has the lowest priority";
  EXPECT_EQ(world.cache->Evict(4), 4u);
  EXPECT_EQ(world.Blocks(prompt), 2u) << "the first two have the highest, one of them in part";
  EXPECT_EQ(world.Blocks(other), 0u);
}

TEST(Retain, EndsWithItsTime) {
  RetainWorld world(/*slots=*/20);
  const auto first = SomeTokens(2 * kBlock, 1);
  const auto second = SomeTokens(2 * kBlock, 2);
  Must(world.Run(first)->Retain({.priority = 90, .ttl_us = 3 * kRetainSecond_us}));
  Must(world.Run(second)->Retain({.priority = 60}));
  world.clock.Advance(3 * kRetainSecond_us - 1000);
  EXPECT_EQ(world.cache->Evict(1), 1u);
  EXPECT_EQ(world.Blocks(second), 1u);
  world.clock.Advance(1000);
  EXPECT_EQ(world.cache->Evict(1), 1u) << "nobody else asked for anything meanwhile";
  EXPECT_EQ(world.Blocks(first), 1u);
  EXPECT_EQ(world.Blocks(second), 1u);
}

TEST(Retain, TheHigherPriorityAndTheLaterEndCount) {
  RetainWorld world(/*slots=*/20);
  const auto shared = SomeTokens(2 * kBlock, 1);
  const auto other = SomeTokens(2 * kBlock, 2);
  Must(world.Run(shared)->Retain({.priority = 90, .ttl_us = kRetainSecond_us}));
  Must(world.Run(shared)->Retain({.priority = 30, .ttl_us = 5 * kRetainSecond_us}));
  Must(world.Run(other)->Retain({.priority = 80}));
  world.clock.Advance(4 * kRetainSecond_us);
  EXPECT_EQ(world.cache->Evict(1), 1u);
  EXPECT_EQ(world.Blocks(other), 1u);
  world.clock.Advance(kRetainSecond_us);
  EXPECT_EQ(world.cache->Evict(1), 1u);
  EXPECT_EQ(world.Blocks(shared), 1u);
  // An expired priority does not raise the next one.
  Must(world.Run(std::span(shared).first(kBlock))->Retain({.priority = 10}));
  Must(world.Run(std::span(other).first(kBlock))->Retain({.priority = 20}));
  EXPECT_EQ(world.cache->Evict(1), 1u);
  EXPECT_EQ(world.Blocks(shared), 0u);
}

TEST(Retain, IsOfOneTenant) {
  RetainWorld world(/*slots=*/20);
  const TenantId a = Must(world.cache->AddTenant({.name = "a"}));
  const auto prompt = SomeTokens(2 * kBlock, 1);
  const auto run = [&](TenantId tenant) {
    auto plan = Must(
        world.cache->Acquire({.tenant = tenant, .identity = &world.identity, .tokens = prompt}));
    auto sequence = Must(world.cache->Open(std::move(plan), {}));
    Must(world.model.Feed(*sequence, prompt));
    return sequence;
  };
  Must(run(a)->Retain({.priority = 100}));
  run(kDefaultTenant);
  const auto others = SomeTokens(2 * kBlock, 2);
  Must(world.Run(others)->Retain({.priority = 60}));
  // Over all tenants the oldest victim goes, whatever the priorities of each tenant.
  EXPECT_EQ(world.cache->Evict(3), 3u);
  EXPECT_EQ(Must(world.cache->tenant_stats(a)).published_blocks, 0u);
  EXPECT_EQ(world.Blocks(prompt), 1u) << "the same tokens of this tenant never got a priority";
  EXPECT_EQ(world.Blocks(others), 2u);
}

TEST(Retain, SurvivesNeitherResetNorRefusal) {
  RetainWorld world(/*slots=*/20);
  const auto prompt = SomeTokens(2 * kBlock, 1);
  auto sequence = world.Run(prompt);
  const auto empty = sequence->Retain({.begin_token = 7, .end_token = 7});
  ASSERT_FALSE(empty.has_value());
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
  const auto high = sequence->Retain({.priority = 101});
  ASSERT_FALSE(high.has_value());
  EXPECT_EQ(high.error().code, ErrorCode::kInvalidArgument);
  sequence->Reset();
  Must(sequence->Retain({.priority = 90}));
  sequence->Reset();
  Must(world.model.Feed(*sequence, SomeTokens(2 * kBlock, 2)));
  sequence.reset();
  Must(world.Run(SomeTokens(2 * kBlock, 3))->Retain({.priority = 51}));
  EXPECT_EQ(world.cache->Evict(4), 4u);
  EXPECT_EQ(world.Blocks(SomeTokens(2 * kBlock, 3)), 2u);

  RetainWorld other(/*slots=*/20, "lru");
  const auto refused = other.Run(prompt)->Retain({.priority = 90});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("policy \"lru\""));
  auto alone = world.Run(prompt, {.publish = false});
  EXPECT_EQ(alone->Retain({}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::cache

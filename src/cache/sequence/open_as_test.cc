// AcquireRequest::open_as: Acquire refuses exactly what Open would have no room for, and such a
// refusal leaves no trace.
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

LayerGroup WindowGroup(std::vector<uint32_t> layers) {
  LayerGroup group = Geometry::Uniform(1, 2, 4).groups[0];
  group.kind = LayerKind::kWindow;
  group.window_tokens = 40;
  group.sink_tokens = 4;
  group.layers = std::move(layers);
  return group;
}

struct OpenAsKind {
  const char* name;
  Geometry geometry;
  NumericProfile profile;
};

std::vector<OpenAsKind> Kinds() {
  Geometry mixed = Geometry::Uniform(1, 2, 4);
  mixed.groups.push_back(WindowGroup({1}));
  NumericProfile encoded = NumericProfile::Uniform(Codec::kF32);
  for (CodecRule& rule : encoded.codecs) rule.codec = Codec::kInt8;
  NumericProfile residual = encoded;
  residual.residual_tokens = 2 * kBlock;
  const NumericProfile plain = NumericProfile::Uniform(Codec::kF16);
  return {{"plain", SmallGeometry(), plain},
          {"windowed", {.groups = {WindowGroup({0, 1})}}, plain},
          {"mixed", mixed, plain},
          {"encoded", SmallGeometry(), encoded},
          {"residual", SmallGeometry(), residual}};
}

TEST(OpenAs, RefusesExactlyTheRequestsThatOpenRefuses) {
  for (const OpenAsKind& kind : Kinds()) {
    SCOPED_TRACE(kind.name);
    TestCache world(24, kind.geometry, kind.profile);
    const TenantId guest = Must(world.cache->AddTenant(
        {.name = "guest", .quota_bytes = world.BytesFor(9), .floor_bytes = world.BytesFor(2)}));
    Prng prng(11);
    std::vector<std::unique_ptr<Sequence>> open;
    uint64_t refused = 0;
    uint64_t opened_beside = 0;
    for (int step = 0; step < 3000; ++step) {
      if (!open.empty() && prng.NextBelow(3) == 0) {
        open.erase(open.begin() + static_cast<int64_t>(prng.NextBelow(open.size())));
      }
      const std::vector<TokenId> prompt =
          Join(SomeTokens(kBlock * prng.NextBelow(6), 1 + prng.NextBelow(3)),
               SomeTokens(1 + prng.NextBelow(60), 100 + prng.NextBelow(4)));
      const SequenceOptions options = {.reserve_tokens = prng.NextBelow(200),
                                       .step_tokens = 32,
                                       .on_full = static_cast<OnFull>(1 + prng.NextBelow(4))};
      AcquireRequest request = {.tenant = prng.NextBelow(2) == 0 ? kDefaultTenant : guest,
                                .identity = &world.identity,
                                .tokens = prompt,
                                .reuse = prng.NextBelow(8) != 0};
      const auto try_open = [&]() -> Result<std::unique_ptr<Sequence>> {
        QUIRE_ASSIGN(auto plan, world.cache->Acquire(request));
        return world.cache->Open(std::move(plan), options);
      };
      const std::string before = world.Snapshot();
      const uint64_t refusals = world.cache->stats().refused_total;
      request.open_as = &options;
      auto plan = world.cache->Acquire(request);
      if (!plan) {
        ++refused;
        ASSERT_EQ(plan.error().code, ErrorCode::kNoSpace) << plan.error().message;
        ASSERT_EQ(world.Snapshot(), before);
        ASSERT_EQ(world.cache->stats().refused_total, refusals);
        request.open_as = nullptr;
        const auto sequence = try_open();
        ASSERT_FALSE(sequence) << step << ": " << plan.error().message;
        ASSERT_EQ(sequence.error().message, plan.error().message);
        continue;
      }
      auto sequence = world.cache->Open(*std::move(plan), options);
      if (!sequence) {
        ASSERT_EQ(sequence.error().code, ErrorCode::kTooLarge) << sequence.error().message;
        continue;
      }
      if (!open.empty()) ++opened_beside;
      while ((*sequence)->length() < prompt.size()) {
        const uint64_t end = (*sequence)->length() + options.step_tokens;
        const auto fed = world.model.Feed(
            **sequence, std::span(prompt).first(std::min<uint64_t>(end, prompt.size())));
        if (fed) continue;
        // The slots outside its window stay cached, and it may not evict them.
        ASSERT_EQ(options.on_full, OnFull::kNoEvict) << fed.error().message;
        break;
      }
      open.push_back(*std::move(sequence));
    }
    EXPECT_GT(refused, 300u);
    EXPECT_GT(opened_beside, 300u);
  }
}

TEST(OpenAs, ARefusalIsNoUseOfTheFoundBlocks) {
  TestCache world(6);
  const std::vector<TokenId> older = SomeTokens(2 * kBlock, 1);
  const std::vector<TokenId> newer = SomeTokens(2 * kBlock, 2);
  world.Run(older);
  world.Run(newer);
  const std::vector<TokenId> longer = Join(older, SomeTokens(5 * kBlock, 3));
  const auto holder = world.Open(SomeTokens(kBlock, 4));
  const SequenceOptions options = {};
  // It would need 2 shared blocks and 5 more, and 3 are free or evictable besides.
  for (int i = 0; i < 3; ++i) {
    const auto plan = world.cache->Acquire({.identity = &world.identity,
                                            .tokens = std::span(longer).first(6 * kBlock - 1),
                                            .open_as = &options});
    ASSERT_FALSE(plan);
  }
  EXPECT_EQ(world.cache->stats().lookups, 3u);
  EXPECT_EQ(world.cache->Evict(2), 2u);
  EXPECT_EQ(world.Resident(Join(newer, older)), 2u * kBlock);
  EXPECT_EQ(world.Resident(longer), 0u);
}

TEST(OpenAs, APinThatHasEndedIsRoom) {
  ManualClock clock;
  TestCache world(4, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, {.clock = &clock});
  const std::vector<TokenId> pinned = SomeTokens(3 * kBlock, 1);
  world.Run(pinned);
  EXPECT_EQ(Must(world.cache->Pin({.identity = &world.identity, .tokens = pinned}, 1000)), 3u);
  const std::vector<TokenId> other = SomeTokens(3 * kBlock, 2);
  const SequenceOptions options = {};
  const AcquireRequest request = {
      .identity = &world.identity, .tokens = other, .open_as = &options};
  EXPECT_EQ(world.cache->Acquire(request).error().code, ErrorCode::kNoSpace);
  clock.Advance(1000);
  EXPECT_TRUE(world.cache->Open(Must(world.cache->Acquire(request)), options));
}

}  // namespace
}  // namespace quire::cache

// What is found: the hit-length rule, identity field by field, reasons of misses.
#include <gtest/gtest.h>

#include <functional>

#include "cache/below/test_store.h"
#include "cache/test_util.h"
#include "cache/verbs/hit_length.h"
#include "codec/test_util.h"

namespace quire::cache {
namespace {

TEST(HitLength, IsWholeBlocksAndLeavesATokenToCompute) {
  for (uint64_t prompt = 1; prompt <= 70; ++prompt) {
    for (uint64_t resident = 0; resident <= 5; ++resident) {
      const WindowReach full;
      const uint64_t hit =
          HitBlocks(prompt, kBlock, resident, {&full, 1}, [](uint32_t, uint64_t) { return true; });
      EXPECT_LE(hit, resident);
      EXPECT_LT(hit * kBlock, prompt);
      // The largest: one block more would break one of the two.
      EXPECT_TRUE(hit + 1 > resident || (hit + 1) * kBlock >= prompt);
    }
  }
  EXPECT_EQ(ReusableBlocks(0, kBlock), 0u);
}

TEST(HitLength, UnderAWindowIsTheLargestBoundaryWithAllThatQueriesSee) {
  Prng prng(1);
  for (int round = 0; round < 3000; ++round) {
    LayerGroup group = Geometry::Uniform(1, 1, 4).groups[0];
    group.kind = LayerKind::kWindow;
    group.window_tokens = static_cast<uint32_t>(1 + prng.NextBelow(60));
    group.sink_tokens = static_cast<uint32_t>(prng.NextBelow(2) * prng.NextBelow(40));
    const WindowReach reaches[] = {WindowReach(group, kBlock), WindowReach()};
    const uint64_t prompt = 1 + prng.NextBelow(160);
    std::vector<bool> there(prng.NextBelow(12));
    for (size_t i = 0; i < there.size(); ++i) there[i] = !prng.NextChance(5);
    uint64_t want = 0;
    for (uint64_t boundary = 1; boundary <= there.size() && boundary * kBlock < prompt;
         ++boundary) {
      bool whole = true;
      for (uint64_t token = 0; token < boundary * kBlock; ++token) {
        const bool seen = token < group.sink_tokens || token / kBlock == boundary - 1 ||
                          token + group.window_tokens > boundary * kBlock;
        whole = whole && (!seen || there[token / kBlock]);
      }
      if (whole) want = boundary;
    }
    EXPECT_EQ(HitBlocks(prompt, kBlock, there.size(), reaches,
                        [&](uint32_t, uint64_t block) { return bool{there[block]}; }),
              want);
  }
}

TEST(Hit, AtEveryPromptLengthAroundBlockBoundaries) {
  TestCache cache(20);
  const auto tokens = SomeTokens(4 * kBlock, 1);
  cache.Run(tokens).reset();
  for (uint64_t length = 1; length <= tokens.size(); ++length) {
    const Plan plan = cache.Acquire(std::span(tokens).first(length));
    EXPECT_EQ(plan.resident_tokens(), (length - 1) / kBlock * kBlock) << length;
    EXPECT_EQ(plan.missing_tokens(), length - plan.resident_tokens());
    EXPECT_EQ(plan.reason(), MissReason::kPartialBlock);
  }
  // Beyond the computed tokens the published blocks limit the hit.
  for (uint64_t more : {1u, 15u, 16u, 17u, 40u}) {
    const Plan plan = cache.Acquire(Join(tokens, SomeTokens(more, 2)));
    EXPECT_EQ(plan.resident_tokens(), tokens.size());
    EXPECT_EQ(plan.missing_tokens(), more);
    EXPECT_EQ(plan.reason(), more <= kBlock ? MissReason::kPartialBlock : MissReason::kNeverSeen);
  }
}

// The prompt ends where its memory ends, whether its blocks are in the cache or in the store.
TEST(Hit, APromptIsReadToItsEndAndNoFurther) {
  const std::vector<TokenId> longest = SomeTokens(10 * kBlock + 5, 1);
  TestStore store;
  CacheOptions more;
  more.store = store.store.get();
  more.clock = &store.clock;
  TestCache test(64, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, more);
  test.Run(longest).reset();
  Must(store.store->Flush());
  for (const bool in_memory : {true, false}) {
    while (!in_memory && test.cache->Evict(100) > 0) {
    }
    for (uint64_t length = 1; length <= longest.size(); ++length) {
      const codec::GuardedBytes bytes(length * sizeof(TokenId), /*at_front=*/false);
      const std::span<TokenId> prompt(reinterpret_cast<TokenId*>(bytes.data()), length);
      std::ranges::copy(std::span(longest).first(length), prompt.begin());
      const Plan plan = test.Acquire(prompt);
      EXPECT_EQ(in_memory ? plan.resident_tokens() : plan.loadable_tokens(),
                (length - 1) / kBlock * kBlock)
          << length;
    }
  }
}

TEST(Hit, EndsAtTheFirstDifferentToken) {
  TestCache cache(20);
  const auto tokens = SomeTokens(5 * kBlock, 1);
  cache.Run(tokens).reset();
  for (uint64_t i = 0; i < 4 * kBlock; ++i) {
    auto query = tokens;
    query[i] ^= 1;
    const Plan plan = cache.Acquire(query);
    EXPECT_EQ(plan.resident_tokens(), i / kBlock * kBlock) << i;
    EXPECT_EQ(plan.reason(), MissReason::kNeverSeen);
  }
}

TEST(Hit, AHitReadsTheBytesOfTheMiss) {
  for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    TestCache cache(20, SmallGeometry(), NumericProfile::Uniform(codec));
    const auto prompt = SomeTokens(53, 1);
    const auto miss = cache.Run(prompt);
    const auto hit = cache.Open(prompt);
    EXPECT_EQ(hit->length(), 48u);
    EXPECT_EQ(cache.model.Differs(*hit, std::span(prompt).first(48)), "");
    Must(cache.model.Feed(*hit, prompt));
    EXPECT_EQ(cache.model.Differs(*hit, prompt), "");
    EXPECT_EQ(Must(hit->View(1, StreamRole::kValue)).slots()[2],
              Must(miss->View(1, StreamRole::kValue)).slots()[2]);
  }
}

TEST(Hit, OnlyForTheSameIdentityInEveryField) {
  TestCache cache(20);
  const auto prompt = SomeTokens(3 * kBlock, 1);
  cache.Run(prompt).reset();
  const std::vector<std::function<void(Identity&)>> changes = {
      [](Identity& i) { i.weights[31] ^= 1; },
      [](Identity& i) { i.adapter = "a"; },
      [](Identity& i) { i.adapter_version = 1; },
      [](Identity& i) { i.position_encoding += "0"; },
      [](Identity& i) { i.domain.name = "tenant2"; },
      [](Identity& i) { i.domain.secret[31] ^= 1; },
      [](Identity& i) { i.domain.erase_epoch = 1; },
      // The same letters divided differently among the fields.
      [](Identity& i) {
        i.adapter = i.position_encoding;
        i.position_encoding = "";
      },
  };
  for (size_t change = 0; change < changes.size(); ++change) {
    Identity other = cache.identity;
    changes[change](other);
    const auto plan = Must(cache.cache->Acquire({.identity = &other, .tokens = prompt}));
    EXPECT_EQ(plan.resident_tokens(), 0u) << "change " << change;
    const bool same_domain = other.domain == cache.identity.domain;
    EXPECT_EQ(plan.reason(), same_domain ? MissReason::kOtherProfile : MissReason::kNeverSeen);
  }
  EXPECT_EQ(cache.Resident(prompt), 2u * kBlock);
}

TEST(Hit, DifferentIdentitiesKeepTheirOwnBytes) {
  TestCache cache(20);
  const auto prompt = SomeTokens(40, 1);
  const FakeModel other_model(SmallGeometry(), /*weights=*/2);
  Identity other = cache.identity;
  other.weights = {2};
  const auto sequence = cache.Run(prompt);
  const auto other_sequence = Must(
      cache.cache->Open(Must(cache.cache->Acquire({.identity = &other, .tokens = prompt})), {}));
  Must(other_model.Feed(*other_sequence, prompt));
  EXPECT_EQ(cache.slots_used(), 6u);
  EXPECT_EQ(cache.model.Differs(*sequence, prompt), "");
  EXPECT_EQ(other_model.Differs(*other_sequence, prompt), "");
  EXPECT_NE(cache.model.Differs(*other_sequence, prompt), "");
}

TEST(RootKey, DiffersWithEveryFieldOfGeometryAndProfile) {
  const Identity identity = SomeIdentity();
  const Geometry geometry = SmallGeometry();
  const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  std::vector<Digest> keys = {RootKey(identity, geometry, profile)};
  EXPECT_EQ(keys[0], RootKey(identity, geometry, profile));

  const std::vector<std::function<void(Geometry&)>> of_geometry = {
      [](Geometry& g) { g.groups[0].kind = LayerKind::kWindow; },
      [](Geometry& g) { g.groups[0].layers = {0}; },
      [](Geometry& g) { g.groups[0].layers = {0, 2}; },
      [](Geometry& g) { g.groups[0].window_tokens = 9; },
      [](Geometry& g) { g.groups[0].sink_tokens = 9; },
      [](Geometry& g) { g.groups[0].streams[0].heads = 9; },
      [](Geometry& g) { g.groups[0].streams[1].dim = 9; },
      [](Geometry& g) { g.groups[0].streams[0].role = StreamRole::kLatent; },
      [](Geometry& g) { g.groups[0].streams.pop_back(); },
      [](Geometry& g) { g.groups.push_back(g.groups[0]); },
  };
  for (const auto& change : of_geometry) {
    Geometry other = geometry;
    change(other);
    keys.push_back(RootKey(identity, other, profile));
  }
  const std::vector<std::function<void(NumericProfile&)>> of_profile = {
      [](NumericProfile& p) { p.block_tokens = 32; },
      [](NumericProfile& p) { p.residual_tokens = 32; },
      [](NumericProfile& p) { p.open_dtype = Codec::kBf16; },
      [](NumericProfile& p) { p.codecs[0].codec = Codec::kBf16; },
      [](NumericProfile& p) { p.codecs[1].codec = Codec::kBf16; },
      [](NumericProfile& p) { p.codecs.pop_back(); },
      [](NumericProfile& p) { p.compute = ComputeType::kBf16; },
      [](NumericProfile& p) { p.arithmetic = "fma32x"; },
      [](NumericProfile& p) { p.kernel_revision += 1; },
  };
  for (const auto& change : of_profile) {
    NumericProfile other = profile;
    change(other);
    keys.push_back(RootKey(identity, geometry, other));
  }
  std::ranges::sort(keys);
  EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end());
}

TEST(ChildKey, DependsOnDomainParentAndTokens) {
  const Domain domain = SomeIdentity().domain;
  const auto tokens = SomeTokens(kBlock, 1);
  const Digest parent = {1};
  const Digest key = ChildKey(domain, parent, tokens.data(), kBlock);
  EXPECT_EQ(key, ChildKey(domain, parent, tokens.data(), kBlock));
  auto other_tokens = tokens;
  other_tokens.back() ^= 1;
  Domain other_domain = domain;
  other_domain.secret[0] ^= 1;
  EXPECT_NE(key, ChildKey(domain, parent, other_tokens.data(), kBlock));
  EXPECT_NE(key, ChildKey(domain, parent, tokens.data(), kBlock - 1));
  EXPECT_NE(key, ChildKey(domain, Digest{2}, tokens.data(), kBlock));
  EXPECT_NE(key, ChildKey(other_domain, parent, tokens.data(), kBlock));
}

TEST(Hit, NotWhenItIsNotWanted) {
  TestCache cache(20);
  const auto prompt = SomeTokens(40, 1);
  const auto first = cache.Run(prompt);
  const Plan plan = cache.Acquire(prompt, /*reuse=*/false);
  EXPECT_EQ(plan.resident_tokens(), 0u);
  EXPECT_EQ(plan.missing_tokens(), 40u);
  EXPECT_EQ(plan.reason(), MissReason::kNotAsked);
}

TEST(Hit, UnpublishedBlocksAreFoundByNoOther) {
  TestCache cache(20);
  const auto prompt = SomeTokens(40, 1);
  const auto secret = cache.Run(prompt, {.publish = false});
  EXPECT_EQ(cache.cache->stats().published_total, 0u);
  EXPECT_EQ(cache.Resident(prompt), 0u);
  EXPECT_EQ(secret->stats().blocks_own, 3u);
  // It may still use the blocks of others.
  const auto other_prompt = SomeTokens(40, 2);
  cache.Run(other_prompt).reset();
  const auto reader = cache.Run(Join(other_prompt, prompt), {.publish = false});
  EXPECT_EQ(reader->stats().blocks_shared, 2u);
  EXPECT_EQ(cache.cache->stats().published_total, 2u);
}

TEST(Hit, CountersAddUp) {
  TestCache cache(20);
  const auto prompt = SomeTokens(40, 1);
  cache.Run(prompt).reset();
  cache.Run(prompt).reset();
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.lookups, 2u);
  EXPECT_EQ(stats.lookup_tokens, 80u);
  EXPECT_EQ(stats.hit_tokens, 32u);
  EXPECT_EQ(stats.published_total, 2u);
  EXPECT_EQ(stats.deduplicated_total, 0u);
  EXPECT_EQ(stats.published_blocks, 2u);
}

TEST(Hit, ReasonsHaveNames) {
  EXPECT_EQ(MissReasonName(MissReason::kNeverSeen), "never_seen");
  EXPECT_EQ(MissReasonName(MissReason::kPartialBlock), "partial_block");
  EXPECT_EQ(MissReasonName(MissReason::kDamaged), "damaged");
  EXPECT_EQ(MissReasonName(MissReason::kNotAsked), "not_asked");
}

}  // namespace
}  // namespace quire::cache

// Blocks that make room are offered to the spill: which, with what bytes, and what becomes of them.
// SPEC M9. What else may happen meanwhile: spill_threads_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "cache/spill_test_util.h"
#include "cache/test_util.h"
#include "cache/twins_test_util.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kBlock = TestCache::kBlock;
constexpr SequenceOptions kSpilling{.on_full = OnFull::kSpill};

NumericProfile F32() { return NumericProfile::Uniform(Codec::kF32); }

/// Ten slots; four hold a prompt that nobody uses, the oldest, two another.
struct World {
  explicit World(CacheOptions more = {}) : cache(10, SmallGeometry(), F32(), 20, With(more)) {
    cache.Run(old).reset();
    cache.Run(young).reset();
  }
  CacheOptions With(CacheOptions options) {
    options.spill = &spill;
    options.clock = &clock;
    return options;
  }
  std::vector<uint64_t> StoredIndices() const {
    std::vector<uint64_t> indices;
    for (const SpilledBlock& block : spill.stored()) indices.push_back(block.index);
    return indices;
  }
  MissReason Reason(std::span<const TokenId> prompt) { return cache.Acquire(prompt).reason(); }
  CacheStats Stats() const { return cache.cache->stats(); }

  MemorySpill spill;
  ManualClock clock;
  TestCache cache;
  std::vector<TokenId> old = SomeTokens(4 * kBlock + 1, 1);
  std::vector<TokenId> young = SomeTokens(2 * kBlock + 1, 2);
};

TEST(Spill, WhatMakesRoomIsStoredDeepestFirst) {
  World world;
  const auto sequence = world.cache.Open(SomeTokens(7 * kBlock, 3), kSpilling);
  EXPECT_THAT(world.StoredIndices(), ElementsAre(3, 2, 1)) << "and the last of the old one stays";
  const CacheStats stats = world.Stats();
  EXPECT_EQ(stats.spilled_total, 3u);
  EXPECT_EQ(stats.evicted_total, 3u);
  EXPECT_EQ(stats.spilled_bytes, 3 * world.cache.cache->block_bytes());
  EXPECT_EQ(stats.spill_failed_total, 0u);
  EXPECT_EQ(stats.spilling_bytes, 0u);
  EXPECT_EQ(SlotCharges(stats), 10 * world.cache.charge_bytes);
}

TEST(Spill, BlocksComeWithTheirPlaceInTheChain) {
  World world;
  const auto sequence = world.cache.Open(SomeTokens(8 * kBlock, 3), kSpilling);
  const auto stored = world.spill.stored();
  ASSERT_EQ(stored.size(), 4u);
  const Identity& identity = world.cache.identity;
  Digest key = RootKey(identity, SmallGeometry(), F32());
  for (uint64_t i = 0; i < 4; ++i) {
    const SpilledBlock& block = stored[3 - i];
    const std::span tokens = std::span(world.old).subspan(i * kBlock, kBlock);
    EXPECT_EQ(block.parent_key, key);
    key = ChildKey(identity.domain, key, tokens.data(), kBlock);
    EXPECT_EQ(block.key, key);
    EXPECT_EQ(block.index, i);
    EXPECT_TRUE(std::ranges::equal(block.tokens, tokens));
    EXPECT_EQ(block.publisher, "default");
    EXPECT_EQ(block.account, "default");
    EXPECT_EQ(block.erase_epoch, 0u);
    EXPECT_EQ(block.retained_until_us, 0u) << "nobody gave it a priority";
  }
}

TEST(Spill, BytesAreThoseThatWereSealedInEveryArena) {
  for (const ArenaLayout layout :
       {ArenaLayout::kBlockMajor, ArenaLayout::kLayerMajor, ArenaLayout::kHeadMajor}) {
    SCOPED_TRACE(ArenaLayoutName(layout));
    World world({.layout = layout});
    std::vector<std::byte> shown;
    {
      const auto reader = world.cache.Open(world.old);
      const BlockListView view = Must(reader->View(0, StreamRole::kKey));
      const auto* row = view.slots()[3] + view.layout().offset_bytes;
      shown.assign(row, row + 4 * sizeof(float));
    }
    world.cache.Resident(world.young);  // more recent again
    const auto sequence = world.cache.Open(SomeTokens(5 * kBlock, 3), kSpilling);
    const auto stored = world.spill.stored();
    ASSERT_EQ(stored.size(), 1u);
    ASSERT_EQ(stored[0].parts.size(), 1u);
    const SpilledBlock::Part& part = stored[0].parts[0];
    EXPECT_EQ(part.part, 0u);
    EXPECT_EQ(part.bytes.size(), world.cache.cache->block_bytes());
    // Layer-major: an array each of K and V of two layers; head-major: of their two heads too.
    EXPECT_EQ(part.pieces, layout == ArenaLayout::kBlockMajor   ? 1u
                           : layout == ArenaLayout::kLayerMajor ? 4u
                                                                : 8u);
    EXPECT_EQ(std::memcmp(part.bytes.data(), shown.data(), shown.size()), 0);
  }
}

// Rows of one stored stream as floats: [tokens, heads, dim].
std::vector<float> RowsIn(const std::vector<std::byte>& slot, const StreamLayout& layout) {
  std::vector<float> rows;
  for (uint32_t t = 0; t < kBlock; ++t) {
    for (uint32_t head = 0; head < layout.heads; ++head) {
      for (uint32_t d = 0; d < layout.dim; ++d) {
        const uint64_t in_plane =
            layout.inner == InnerAxis::kToken ? d * kBlock + t : t * layout.dim + d;
        float value = 0;
        std::memcpy(&value,
                    slot.data() + layout.offset_bytes + head * layout.head_stride_bytes +
                        in_plane * sizeof(float),
                    sizeof(float));
        rows.push_back(value);
      }
    }
  }
  return rows;
}

TEST(Spill, WhatWasStoredIsEnoughToGoOnWith) {
  World world;
  world.cache.Open(SomeTokens(10 * kBlock, 3), kSpilling).reset();
  ASSERT_EQ(world.spill.stored().size(), 6u);
  const Plan plan = world.cache.Acquire(world.old);
  ASSERT_EQ(plan.reason(), MissReason::kSpilled);
  ASSERT_EQ(plan.missing()[0].tokens, 4u * kBlock);

  // By key, as a tier would find them, into a sequence that computes nothing but the last token.
  const auto sequence = world.cache.Open(world.old);
  const Identity& identity = world.cache.identity;
  Digest key = RootKey(identity, SmallGeometry(), F32());
  for (uint64_t i = 0; i < 4; ++i) {
    const std::span tokens = std::span(world.old).subspan(i * kBlock, kBlock);
    key = ChildKey(identity.domain, key, tokens.data(), kBlock);
    const auto block = world.spill.Find(key);
    ASSERT_TRUE(block.has_value());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const LayerBlocks layout = sequence->Blocks(layer);
      const auto key_rows = RowsIn(block->parts[0].bytes, layout.key);
      const auto value_rows = RowsIn(block->parts[0].bytes, layout.value);
      const std::vector<Stream>& streams = world.cache.model.GroupOf(layer).streams;
      Must(sequence->Append(layer, {.key = FakeModel::Packed(key_rows, streams[0]),
                                    .value = FakeModel::Packed(value_rows, streams[1]),
                                    .tokens = kBlock}));
    }
    Must(sequence->Commit(tokens));
  }
  Must(world.cache.model.Feed(*sequence, world.old));
  EXPECT_EQ(world.cache.model.Differs(*sequence, world.old), "");
  EXPECT_EQ(world.cache.Resident(world.old), 4u * kBlock);
}

TEST(Spill, NothingIsStoredForARefusal) {
  World world;
  const auto user = world.cache.Open(SomeTokens(2 * kBlock, 4));
  const std::string before = world.cache.Snapshot();
  const std::string map = world.cache.cache->BlockMap();
  const auto refused = world.cache.TryOpen(SomeTokens(9 * kBlock, 3), kSpilling);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("0 shared and 9 own blocks"));
  EXPECT_EQ(world.cache.cache->BlockMap(), map);
  EXPECT_THAT(world.spill.stored(), IsEmpty());
  EXPECT_EQ(world.Stats().refused_total, 1u);
  EXPECT_EQ(world.cache.TryOpen(SomeTokens(11 * kBlock, 3), kSpilling).error().code,
            ErrorCode::kTooLarge);
}

TEST(Spill, WithoutASpillOpenSaysWhatToDo) {
  TestCache cache(10);
  cache.Run(SomeTokens(4 * kBlock, 1)).reset();
  const auto refused = cache.TryOpen(SomeTokens(2 * kBlock, 3), kSpilling);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("CacheOptions::spill"));
  EXPECT_EQ(cache.cache->stats().evictable_blocks, 4u) << "the plan's pins are dropped";
}

TEST(Spill, OtherRequestsOfTheSameCacheStoreNothing) {
  World world;
  world.cache.Open(SomeTokens(6 * kBlock, 3)).reset();
  EXPECT_EQ(world.Stats().evicted_total, 2u);
  world.cache.cache->Evict(1);
  Must(world.cache.cache->Resize(world.cache.BytesFor(2)));
  EXPECT_EQ(world.Stats().evicted_total, 4u);
  EXPECT_THAT(world.spill.stored(), IsEmpty());
  EXPECT_EQ(world.Reason(world.old), MissReason::kEvicted);
}

TEST(Spill, GrowingLaterIsTheSameRequest) {
  World world;
  const auto history = SomeTokens(8 * kBlock, 3);
  const auto sequence = world.cache.Run(std::span(history).first(3 * kBlock), kSpilling);
  EXPECT_THAT(world.spill.stored(), IsEmpty()) << "four were free";
  Must(sequence->Reserve(5 * kBlock));
  EXPECT_THAT(world.StoredIndices(), ElementsAre(3));
  Must(world.cache.model.Feed(*sequence, std::span(history).first(6 * kBlock)));
  EXPECT_THAT(world.StoredIndices(), ElementsAre(3, 2)) << "Append";
  Must(world.cache.model.Feed(*sequence, std::span(history).first(6 * kBlock + 3)));
  const auto fork = Must(sequence->Fork());
  EXPECT_THAT(world.StoredIndices(), ElementsAre(3, 2, 1, 0)) << "Append, and the fork's tail";
  EXPECT_EQ(world.cache.model.Differs(*fork, std::span(history).first(6 * kBlock + 3)), "");
}

TEST(Spill, AnErrorLosesTheBlockAndIsCounted) {
  World world;
  int calls = 0;
  world.spill.before = [&](const SpilledBlock&) -> Result<void> {
    if (++calls == 2) return Fail(ErrorCode::kIo, "the disk is full");
    if (calls == 3) throw std::runtime_error("not even an error");
    return {};
  };
  const auto sequence = world.cache.Open(SomeTokens(8 * kBlock, 3), kSpilling);
  EXPECT_EQ(calls, 4);
  EXPECT_THAT(world.StoredIndices(), ElementsAre(3, 0));
  const CacheStats stats = world.Stats();
  EXPECT_EQ(stats.spilled_total, 2u);
  EXPECT_EQ(stats.spill_failed_total, 2u);
  EXPECT_EQ(stats.evicted_total, 4u);
  EXPECT_EQ(SlotCharges(stats), 10 * world.cache.charge_bytes);
  const Plan plan = world.cache.Acquire(world.old);
  const std::vector<MissRun> missing(plan.missing().begin(), plan.missing().end());
  ASSERT_EQ(missing.size(), 4u);
  EXPECT_EQ(missing[0].reason, MissReason::kSpilled);
  EXPECT_EQ(missing[1].reason, MissReason::kEvicted);
  EXPECT_EQ(missing[1].tokens, 2u * kBlock);
  EXPECT_EQ(missing[2].reason, MissReason::kSpilled);
}

TEST(Spill, LookupsHearWhenItWentAndTenantsAreCounted) {
  World world;
  world.clock.Advance(1234);
  world.cache.Open(SomeTokens(8 * kBlock, 3), kSpilling).reset();
  const Plan plan = world.cache.Acquire(world.old);
  ASSERT_EQ(plan.reason(), MissReason::kSpilled);
  EXPECT_EQ(plan.missing()[0].tokens, 4u * kBlock);
  EXPECT_EQ(plan.missing()[0].gone_us, world.clock.NowMicros());
  const TenantStats stats = Must(world.cache.cache->tenant_stats(kDefaultTenant));
  EXPECT_EQ(stats.spilled_total, 4u);
  EXPECT_EQ(stats.spilled_bytes, 4 * world.cache.cache->block_bytes());
  EXPECT_EQ(stats.missed_tokens[static_cast<uint8_t>(MissReason::kSpilled)], 4u * kBlock);
  EXPECT_THAT(ToJson(stats), HasSubstr(R"("spilled":64)"));
  EXPECT_THAT(ToJson(stats), HasSubstr(R"("spilled_total":4)"));
  EXPECT_THAT(ToText(world.Stats()), HasSubstr("spill_failed_total"));
  // Computed again it is here again, and goes for another reason the next time.
  world.cache.Run(world.old).reset();
  world.cache.cache->Evict(100);
  EXPECT_EQ(world.Reason(world.old), MissReason::kEvicted);
}

TEST(Spill, PrioritiesGoAlong) {
  World world({.policy = "priority"});
  {
    const auto reader = world.cache.Run(world.young);
    Must(reader->Retain({.begin_token = kBlock, .priority = 10, .ttl_us = 500}));
  }
  const uint64_t until_us = world.clock.NowMicros() + 500;
  const auto sequence = world.cache.Open(SomeTokens(6 * kBlock, 3), kSpilling);
  const auto stored = world.spill.stored();
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(stored[0].index, 1u) << "what is wanted least";
  EXPECT_EQ(stored[0].priority, 10u);
  EXPECT_EQ(stored[0].retained_until_us, until_us);
  EXPECT_EQ(stored[1].retained_until_us, 0u);
}

TEST(Spill, DamageIsNotStoredNorWhatContinuesIt) {
  World world;
  {
    const auto reader = world.cache.Open(world.old);
    FlipBit(*reader, 2);
  }
  world.cache.Resident(world.young);
  const auto sequence = world.cache.Open(SomeTokens(8 * kBlock, 3), kSpilling);
  EXPECT_THAT(world.StoredIndices(), ElementsAre(1, 0));
  EXPECT_EQ(world.Stats().spilled_total, 2u);
  EXPECT_EQ(world.Stats().spill_failed_total, 0u);
  EXPECT_EQ(world.Stats().evicted_total, 4u);
  const Plan plan = world.cache.Acquire(world.old);
  EXPECT_EQ(plan.missing()[0].reason, MissReason::kSpilled);
  EXPECT_EQ(plan.missing()[1].reason, MissReason::kDamaged);
  EXPECT_EQ(plan.missing()[1].tokens, 2u * kBlock);
}

TEST(Spill, PinsAreNeverVictims) {
  World world;
  const AcquireRequest pinned{.identity = &world.cache.identity,
                              .tokens = std::span(world.old).first(2 * kBlock)};
  ASSERT_EQ(Must(world.cache.cache->Pin(pinned, 0)), 2u);
  const auto sequence = world.cache.Open(SomeTokens(8 * kBlock, 3), kSpilling);
  EXPECT_THAT(world.StoredIndices(), ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(world.cache.Resident(world.old), 2u * kBlock);
}

TEST(Spill, QuotasOfTenantsAndDomainsStoreTheirOwn) {
  World world;
  Cache& cache = *world.cache.cache;
  const uint64_t charge = world.cache.charge_bytes;
  const TenantId poor = Must(cache.AddTenant({.name = "poor", .quota_bytes = 4 * charge - 1}));
  Must(cache.AddTenant({.name = "team", .quota_bytes = 4 * charge - 1, .shared = true}));
  const TenantId member = Must(cache.AddTenant({.name = "member", .domain = "team"}));
  const auto run = [&](TenantId tenant, const std::vector<TokenId>& prompt) {
    auto sequence = Must(cache.Open(
        Must(
            cache.Acquire({.tenant = tenant, .identity = &world.cache.identity, .tokens = prompt})),
        kSpilling));
    Must(world.cache.model.Feed(*sequence, prompt));
  };
  run(poor, SomeTokens(2 * kBlock, 5));
  EXPECT_THAT(world.spill.stored(), IsEmpty());
  run(poor, SomeTokens(2 * kBlock, 6));
  auto stored = world.spill.stored();
  ASSERT_EQ(stored.size(), 1u) << "of its own, although others' are older";
  EXPECT_EQ(stored[0].account, "poor");
  const auto reason = [&](TenantId tenant, std::vector<TokenId> prompt) {
    prompt.push_back(1);
    return Must(cache.Acquire(
                    {.tenant = tenant, .identity = &world.cache.identity, .tokens = prompt}))
        .reason();
  };
  EXPECT_EQ(reason(poor, SomeTokens(2 * kBlock, 5)), MissReason::kSpilled);

  // What is published to a full domain makes room there, at the commit.
  cache.Evict(100);
  run(member, SomeTokens(2 * kBlock, 7));
  run(member, SomeTokens(2 * kBlock, 8));
  stored = world.spill.stored();
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(stored[1].account, "team");
  EXPECT_EQ(stored[1].publisher, "member");
  EXPECT_EQ(stored[1].index, 1u);
  EXPECT_EQ(Must(cache.tenant_stats(Must(cache.FindTenant("team")))).spilled_total, 1u);
  EXPECT_EQ(cache.stats().spilling_bytes, 0u);
  EXPECT_EQ(cache.stats().hot_bytes_used, cache.stats().sealed.slots_used * charge);
}

TEST(Spill, TwinsGoWithoutBeingOffered) {
  MemorySpill spill;
  TestCache cache(6, Geometry::Uniform(2, 2, 32), ResidualProfile(kBlock), 0, {.spill = &spill});
  cache.Run(SomeTokens(3 * kBlock, 1)).reset();
  const uint64_t twins = cache.cache->stats().twin_slots;
  ASSERT_GT(twins, 0u);
  const auto all = cache.Open(SomeTokens(6 * kBlock, 2), kSpilling);
  const auto stored = spill.stored();
  ASSERT_FALSE(stored.empty());
  for (const SpilledBlock& block : stored) {
    ASSERT_EQ(block.parts.size(), 1u) << "the sealed form only";
    EXPECT_EQ(block.parts[0].bytes.size(), cache.cache->block_bytes());
  }
  EXPECT_EQ(stored.size(), cache.cache->stats().evicted_total);
  EXPECT_EQ(cache.cache->stats().evicted_passed_total, twins) << "before their blocks";
}

// Layer 0 sees everything, layer 1 the last block.
Geometry Mixed() {
  Geometry geometry = Geometry::Uniform(1, 2, 4);
  geometry.groups.push_back(geometry.groups[0]);
  geometry.groups[1].kind = LayerKind::kWindow;
  geometry.groups[1].window_tokens = kBlock;
  geometry.groups[1].layers = {1};
  return geometry;
}

TEST(Spill, WhatWindowsHavePassedGoesAlone) {
  MemorySpill spill;
  TestCache cache(7, Mixed(), F32(), 0, {.spill = &spill});
  const auto prompt = SomeTokens(4 * kBlock, 1);
  auto user = cache.Open(prompt, {.step_tokens = kBlock});
  for (uint64_t end = kBlock; end <= prompt.size(); end += kBlock) {
    Must(cache.model.Feed(*user, std::span(prompt).first(end)));
  }
  ASSERT_GT(cache.cache->stats().passed_blocks, 0u);
  std::vector<std::unique_ptr<Sequence>> others;
  while (true) {
    auto opened = cache.TryOpen(SomeTokens(1, 10 + others.size()),
                                {.step_tokens = 1, .on_full = OnFull::kSpill});
    if (!opened) break;
    others.push_back(*std::move(opened));
  }
  const auto stored = spill.stored();
  ASSERT_GE(stored.size(), 2u);
  for (const SpilledBlock& block : stored) {
    ASSERT_EQ(block.parts.size(), 1u);
    EXPECT_EQ(block.parts[0].part, 1u) << "the window's";
  }
  EXPECT_EQ(stored[0].index, 0u) << "what was passed first";
  EXPECT_EQ(stored[1].index, 1u);
  EXPECT_EQ(cache.cache->stats().evicted_passed_total, stored.size());
  EXPECT_EQ(cache.cache->stats().evicted_total, 0u);
  // Then the block itself goes, with what it has left.
  user.reset();
  others.clear();
  const auto all = cache.Open(SomeTokens(7 * kBlock, 20), kSpilling);
  const auto leaf = spill.stored().at(stored.size());
  EXPECT_EQ(leaf.index, 3u);
  EXPECT_EQ(leaf.parts.size(), 2u) << "the window still looks there";
  const auto rest = spill.Find(stored[1].key);
  ASSERT_TRUE(rest.has_value());
  ASSERT_EQ(rest->parts.size(), 1u);
  EXPECT_EQ(rest->parts[0].part, 0u);
}

TEST(Spill, DamageInWhatGoesAloneQuarantinesTheRest) {
  MemorySpill spill;
  TestCache cache(7, Mixed(), F32(), 0, {.spill = &spill});
  const auto prompt = SomeTokens(3 * kBlock, 1);
  auto user = cache.Open(prompt, {.step_tokens = kBlock});
  Must(cache.model.Feed(*user, std::span(prompt).first(kBlock)));
  {
    const BlockListView view = Must(user->View(1, StreamRole::kKey));
    *const_cast<std::byte*>(view.slots()[0] + view.layout().offset_bytes) ^= std::byte{1};
  }
  for (uint64_t end = 2 * kBlock; end <= prompt.size(); end += kBlock) {
    Must(cache.model.Feed(*user, std::span(prompt).first(end)));
  }
  ASSERT_GT(cache.cache->stats().passed_blocks, 0u);
  std::vector<std::unique_ptr<Sequence>> others;
  while (cache.cache->stats().evicted_passed_total == 0) {
    others.push_back(cache.Open(SomeTokens(1, 10 + others.size()),
                                {.step_tokens = 1, .on_full = OnFull::kSpill}));
  }
  EXPECT_THAT(spill.stored(), IsEmpty());
  EXPECT_EQ(cache.Acquire(prompt).reason(), MissReason::kDamaged);
  user.reset();
  EXPECT_EQ(cache.cache->stats().published_blocks, 0u) << "nothing of it is kept";
}

TEST(Spill, TheSpillMayLookAtTheCacheAndAtTheSequenceThatWaits) {
  World world;
  const auto history = SomeTokens(8 * kBlock, 3);
  const auto sequence = world.cache.Run(std::span(history).first(4 * kBlock), kSpilling);
  uint64_t seen = 0;
  world.spill.before = [&](const SpilledBlock& block) -> Result<void> {
    EXPECT_EQ(Must(sequence->View(0, StreamRole::kKey)).tokens(), 4u * kBlock);
    EXPECT_EQ(sequence->stats().tokens_used, 4u * kBlock);
    // It has left: found up to the block before it.
    EXPECT_LE(world.cache.Resident(world.old), block.index * kBlock);
    const CacheStats stats = world.Stats();
    EXPECT_EQ(stats.spilling_bytes, 2 * world.cache.charge_bytes);
    EXPECT_LE(stats.hot_bytes_used, stats.hot_bytes_limit);
    ++seen;
    return {};
  };
  Must(sequence->Reserve(6 * kBlock));
  EXPECT_EQ(seen, 2u);
}

// The same random history with and without storing: the same victims at the same moments, so the
// same map of slots, whatever the policy.
TEST(Spill, VictimsAndSlotsAreThoseOfReject) {
  for (const char* policy : {"lru", "lfu", "s3fifo", "arc", "priority", "token_limit", "quire"}) {
    for (const EvictionBatch batch : {EvictionBatch::kExact, EvictionBatch::kAdaptive}) {
      SCOPED_TRACE(std::string(policy) + (batch == EvictionBatch::kExact ? "" : ", batches"));
      MemorySpill spill;
      const CacheOptions more{.policy = policy, .eviction_batch = batch, .spill = &spill};
      TestCache storing(24, SmallGeometry(), F32(), 0, more);
      TestCache rejecting(24, SmallGeometry(), F32(), 0, more);
      Prng prng(7);
      std::vector<std::pair<std::unique_ptr<Sequence>, std::unique_ptr<Sequence>>> live;
      for (int step = 0; step < 200; ++step) {
        if (live.size() > 2) live.erase(live.begin() + static_cast<int64_t>(prng.NextBelow(3)));
        const auto prompt = Join(SomeTokens((1 + prng.NextBelow(3)) * kBlock, prng.NextBelow(6)),
                                 SomeTokens(1 + prng.NextBelow(3 * kBlock), prng.NextBelow(6)));
        auto stored = storing.TryOpen(prompt, kSpilling);
        auto rejected = rejecting.TryOpen(prompt);
        ASSERT_EQ(stored.has_value(), rejected.has_value());
        ASSERT_EQ(storing.cache->BlockMap(), rejecting.cache->BlockMap()) << step;
        if (!stored) continue;
        Must(storing.model.Feed(**stored, prompt));
        Must(rejecting.model.Feed(**rejected, prompt));
        live.emplace_back(*std::move(stored), *std::move(rejected));
      }
      CacheStats stats = storing.cache->stats();
      EXPECT_GT(stats.spilled_total, 50u);
      EXPECT_EQ(stats.spilled_total, stats.evicted_total) << "each one that went";
      stats.spilled_total = stats.spilled_bytes = 0;
      EXPECT_EQ(ToJson(stats), ToJson(rejecting.cache->stats()));
    }
  }
}

}  // namespace
}  // namespace quire::cache

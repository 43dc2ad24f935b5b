// Tenants: nothing is shared unless both agree, quotas and floors hold, and erased bytes are gone.
// SPEC O4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cache/core.h"
#include "cache/test_util.h"
#include "env/clock.h"
#include "env/seen_memory.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

/// A cache of a few slots whose arena can be searched.
struct TenantsWorld {
  explicit TenantsWorld(uint64_t slots, const Geometry& geometry = SmallGeometry())
      : model(geometry), charge_bytes(ChargePerSlot(geometry, Profile())) {
    CacheOptions options = OnTestDevice({.geometry = geometry,
                                         .profile = Profile(),
                                         .hot_bytes = slots * charge_bytes + charge_bytes - 1,
                                         .clock = &clock});
    options.memory = &seen;
    cache = Must(Core::Make(options));
  }

  static NumericProfile Profile() { return NumericProfile::Uniform(Codec::kF32); }

  /// A quota for so many slots and not quite one more.
  uint64_t QuotaFor(uint64_t slots) const {
    return slots == 0 ? 0 : slots * charge_bytes + charge_bytes - 1;
  }
  TenantId Add(std::string name, uint64_t quota_slots = 0, uint64_t floor_slots = 0,
               std::string domain = "") {
    return Must(cache->AddTenant({.name = std::move(name),
                                  .quota_bytes = QuotaFor(quota_slots),
                                  .floor_bytes = floor_slots * charge_bytes,
                                  .domain = std::move(domain)}));
  }
  TenantId AddDomain(std::string name, uint64_t quota_slots = 0) {
    return Must(cache->AddTenant(
        {.name = std::move(name), .quota_bytes = QuotaFor(quota_slots), .shared = true}));
  }
  Plan Acquire(TenantId tenant, std::span<const TokenId> prompt) {
    return Must(cache->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt}));
  }
  Result<std::unique_ptr<Sequence>> TryOpen(TenantId tenant, std::span<const TokenId> prompt,
                                            const SequenceOptions& options = {}) {
    return cache->Open(Acquire(tenant, prompt), options);
  }
  std::unique_ptr<Sequence> Run(TenantId tenant, std::span<const TokenId> prompt) {
    auto sequence = Must(TryOpen(tenant, prompt));
    Must(model.Feed(*sequence, prompt));
    EXPECT_EQ(model.Differs(*sequence, prompt), "");
    return sequence;
  }
  uint64_t Resident(TenantId tenant, std::span<const TokenId> prompt) {
    return Acquire(tenant, prompt).resident_tokens();
  }
  TenantStats Stats(TenantId tenant) const { return Must(cache->tenant_stats(tenant)); }
  uint64_t SlotsOf(TenantId tenant) const { return Stats(tenant).bytes_used / charge_bytes; }

  /// How often a value stands in the arena.
  uint64_t Planted(float value) const {
    uint64_t found = 0;
    const auto arena = seen.arena();
    const std::byte* const bytes = OnHost(arena.data());
    for (uint64_t i = 0; i + sizeof(value) <= arena.size(); i += sizeof(value)) {
      if (std::memcmp(bytes + i, &value, sizeof(value)) == 0) ++found;
    }
    return found;
  }
  /// Appends tokens whose every value is `value`.
  void Plant(Sequence& sequence, std::span<const TokenId> tokens, float value) const {
    const Stream stream{.role = StreamRole::kKey, .heads = 2, .dim = 4};
    const std::vector<float> rows(tokens.size() * stream.heads * stream.dim, value);
    const RowsView view = FakeModel::Packed(rows, stream);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      Must(sequence.Append(
          layer, {.key = view, .value = view, .tokens = static_cast<uint32_t>(tokens.size())}));
    }
    Must(sequence.Commit(tokens));
  }

  ManualClock clock{1000};
  FakeModel model;
  uint64_t charge_bytes;
  Identity identity = SomeIdentity();
  SeenMemory seen{DeviceOfTests() == nullptr ? nullptr : &DeviceOfTests()->memory};  // the cache's
  std::unique_ptr<Core> cache;
};

constexpr float kSecret = 12345.678f;

TEST(Tenants, EqualPromptsOfTwoShareNothing) {
  TenantsWorld world(20);
  const TenantId a = world.Add("a");
  const TenantId b = world.Add("b");
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  const auto of_a = world.Run(a, prompt);
  EXPECT_EQ(world.Resident(a, prompt), 4u * kBlock);
  EXPECT_EQ(world.Resident(b, prompt), 0u);
  EXPECT_EQ(world.Resident(kDefaultTenant, prompt), 0u);
  const auto of_b = world.Run(b, prompt);
  EXPECT_EQ(of_b->stats().blocks_shared, 4u);
  EXPECT_EQ(world.SlotsOf(a), 5u);
  EXPECT_EQ(world.SlotsOf(b), 5u);
  EXPECT_EQ(world.cache->stats().deduplicated_total, 0u);
  EXPECT_EQ(world.Acquire(b, SomeTokens(40, 2)).reason(), MissReason::kNeverSeen);
}

TEST(Tenants, ShareWhereBothNameTheSameDomain) {
  TenantsWorld world(40);
  const TenantId team = world.AddDomain("team");
  world.AddDomain("club");
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  const TenantId alone = world.Add("alone");
  const TenantId other = world.Add("other", 0, 0, "club");
  const auto prompt = SomeTokens(4 * kBlock + 1, 1);
  world.Run(a, prompt).reset();
  EXPECT_EQ(world.Resident(b, prompt), 4u * kBlock);
  EXPECT_EQ(world.Resident(alone, prompt), 0u);
  EXPECT_EQ(world.Resident(other, prompt), 0u);
  EXPECT_EQ(world.SlotsOf(a), 0u) << "the domain pays for what is published in it";
  EXPECT_EQ(world.SlotsOf(team), 4u);
}

TEST(Tenants, NoNameInAnIdentityLeadsToAnothersBlocks) {
  TenantsWorld world(20);
  const TenantId a = world.Add("a");
  const TenantId b = world.Add("b");
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  world.Run(a, prompt).reset();
  for (const std::string name : {"a", "tenant", "default", "quire tenant"}) {
    Identity identity = world.identity;
    identity.domain.name = name;
    for (const TenantId tenant : {b, kDefaultTenant}) {
      const Plan plan =
          Must(world.cache->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt}));
      EXPECT_EQ(plan.resident_tokens(), 0u);
      EXPECT_EQ(plan.reason(), MissReason::kNeverSeen);
    }
  }
}

TEST(Tenants, WhatCannotBeATenantIsRefusedByName) {
  TenantsWorld world(10);
  world.Add("a", 0, 6);
  const auto refuse = [&](const TenantOptions& options, ErrorCode code, const char* text) {
    const auto made = world.cache->AddTenant(options);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, code);
    EXPECT_THAT(made.error().message, HasSubstr(text));
  };
  refuse({}, ErrorCode::kInvalidArgument, "empty");
  refuse({.name = "a"}, ErrorCode::kInvalidArgument, "\"a\": the name is taken");
  refuse({.name = "default"}, ErrorCode::kInvalidArgument, "taken");
  refuse({.name = "b", .quota_bytes = 5, .floor_bytes = 6}, ErrorCode::kInvalidArgument, "above");
  refuse({.name = "b", .domain = "x"}, ErrorCode::kNotFound, "no domain \"x\"");
  refuse({.name = "b", .domain = "a"}, ErrorCode::kNotFound, "no domain \"a\"");
  refuse({.name = "b", .domain = "a", .shared = true}, ErrorCode::kInvalidArgument, "domain");
  refuse({.name = "b", .floor_bytes = 5 * world.charge_bytes}, ErrorCode::kNoSpace, "budget");
  const TenantId b = world.Add("b", 0, 4);
  EXPECT_EQ(Must(world.cache->FindTenant("b")), b);
  EXPECT_EQ(world.cache->FindTenant("c").error().code, ErrorCode::kNotFound);
  const auto prompt = SomeTokens(5, 1);
  const auto nobody =
      world.cache->Acquire({.tenant = TenantId(17), .identity = &world.identity, .tokens = prompt});
  EXPECT_EQ(nobody.error().code, ErrorCode::kNotFound);
  const TenantId domain = world.AddDomain("team");
  const auto of_domain =
      world.cache->Acquire({.tenant = domain, .identity = &world.identity, .tokens = prompt});
  EXPECT_EQ(of_domain.error().code, ErrorCode::kInvalidArgument);
}

TEST(Tenants, AQuotaTakesOnesOwnOldBlocksAndThenRefuses) {
  TenantsWorld world(20);
  const TenantId a = world.Add("a", 4);
  const TenantId b = world.Add("b");
  const auto others = SomeTokens(3 * kBlock + 1, 9);
  world.Run(b, others).reset();
  const auto old = SomeTokens(2 * kBlock + 1, 1);
  world.Run(a, old).reset();
  EXPECT_EQ(world.SlotsOf(a), 2u);
  world.clock.Advance(5);
  const auto live = world.Run(a, SomeTokens(4 * kBlock, 2));
  EXPECT_EQ(world.SlotsOf(a), 4u);
  EXPECT_EQ(world.Resident(b, others), 3u * kBlock) << "not at another's expense";
  const Plan gone = world.Acquire(a, old);
  EXPECT_THAT(gone.missing(),
              ::testing::ElementsAre(
                  MissRun{.reason = MissReason::kQuota, .tokens = 2 * kBlock, .gone_us = 1005},
                  MissRun{.reason = MissReason::kPartialBlock, .tokens = 1}));

  const std::string before = ToJson(world.cache->stats());
  const auto refused = world.TryOpen(a, SomeTokens(5, 3));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("quota of tenant \"a\""));
  EXPECT_EQ(world.Stats(a).refused_total, 1u);
  const auto never = world.TryOpen(a, SomeTokens(4 * kBlock + 1, 3));
  ASSERT_FALSE(never.has_value());
  EXPECT_EQ(never.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(never.error().message, HasSubstr("quota of tenant \"a\""));
  EXPECT_EQ(world.SlotsOf(a), 4u);
}

TEST(Tenants, LimitsMayChangeWhileSequencesLive) {
  TenantsWorld world(40);
  const TenantId a = world.Add("a", 20, 4);
  const TenantId b = world.Add("b");
  const auto cached = SomeTokens(8 * kBlock + 1, 1);
  world.Run(a, cached).reset();
  const auto held = world.Run(a, SomeTokens(5 * kBlock + 1, 2));
  const auto set = [&](TenantId tenant, uint64_t quota_slots, uint64_t floor_slots) {
    return world.cache->SetLimits(tenant, world.QuotaFor(quota_slots),
                                  floor_slots * world.charge_bytes);
  };
  // Lower quota: the oldest unleased blocks go, leased ones stay.
  ASSERT_TRUE(set(a, 10, 2).has_value());
  EXPECT_LE(world.SlotsOf(a), 10);
  EXPECT_EQ(world.Stats(a).quota_bytes, world.QuotaFor(10));
  EXPECT_EQ(world.Stats(a).floor_bytes, 2 * world.charge_bytes);
  EXPECT_LT(world.Resident(a, cached), 8 * kBlock);
  EXPECT_EQ(world.TryOpen(a, SomeTokens(12 * kBlock, 3)).error().code, ErrorCode::kTooLarge);
  // Not below the held bytes.
  const auto refused = set(a, 4, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_THAT(refused.error().message, HasSubstr("\"a\""));
  EXPECT_EQ(world.Stats(a).quota_bytes, world.QuotaFor(10));
  // Higher quota, and none.
  ASSERT_TRUE(set(a, 0, 30).has_value());
  EXPECT_TRUE(world.TryOpen(a, SomeTokens(12 * kBlock, 3)).has_value());
  EXPECT_EQ(set(b, 0, 20).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(set(b, 4, 5).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(set(TenantId(99), 4, 0).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(set(a, 0, 2).has_value());
  EXPECT_TRUE(set(b, 0, 20).has_value());
  world.cache->CheckDirectory();
}

TEST(Tenants, OthersNeverEvictOneBelowItsFloor) {
  TenantsWorld world(10);
  const TenantId a = world.Add("a", 0, 3);
  const TenantId b = world.Add("b");
  const auto kept = SomeTokens(5 * kBlock + 1, 1);
  world.Run(a, kept).reset();
  EXPECT_EQ(world.SlotsOf(a), 5u);
  auto big = world.Run(b, SomeTokens(7 * kBlock, 2));
  EXPECT_EQ(world.SlotsOf(a), 3u);
  EXPECT_EQ(world.Resident(a, kept), 3u * kBlock);
  const auto refused = world.TryOpen(b, SomeTokens(1, 3));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(world.SlotsOf(a), 3u);
  // Its own requests may.
  big.reset();
  world.cache->Evict(100);
  world.Run(a, kept).reset();
  const auto own = world.Run(a, SomeTokens(10 * kBlock, 4));
  EXPECT_EQ(world.SlotsOf(a), 10u);
}

TEST(Tenants, ADomainHasAQuotaOfItsOwn) {
  TenantsWorld world(20);
  const TenantId team = world.AddDomain("team", 3);
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  const auto first = SomeTokens(2 * kBlock + 1, 1);
  world.Run(a, first).reset();
  const auto second = SomeTokens(3 * kBlock + 1, 2);
  auto holder = world.Run(b, second);
  EXPECT_EQ(world.SlotsOf(team), 3u) << "old blocks of the domain made room";
  EXPECT_EQ(world.SlotsOf(b), 1u);
  EXPECT_EQ(world.Resident(a, second), 3u * kBlock);
  // Blocks that do not fit stay private.
  const auto third = SomeTokens(2 * kBlock + 1, 3);
  const auto private_one = world.Run(a, third);
  EXPECT_EQ(world.SlotsOf(team), 3u);
  EXPECT_EQ(world.SlotsOf(a), 3u);
  EXPECT_EQ(world.Resident(b, third), 0u);
}

// Found by the stress test: the second of two holders of one private slot took another reference.
TEST(Tenants, AForkMayPublishWhatBothHold) {
  TenantsWorld world(20);
  const TenantId team = world.AddDomain("team", 2);
  const TenantId a = world.Add("a", 0, 0, "team");
  auto blocker = world.Run(a, SomeTokens(2 * kBlock, 1));
  const auto history = SomeTokens(2 * kBlock, 2);
  auto sequence = world.Run(a, history);
  auto fork = Must(sequence->Fork());
  EXPECT_EQ(world.SlotsOf(a), 2u) << "the domain is full, so they are private";
  blocker.reset();
  const auto longer = Join(history, SomeTokens(1, 3));
  Must(world.model.Feed(*sequence, longer));
  Must(world.model.Feed(*fork, longer));
  EXPECT_EQ(world.SlotsOf(team), 2u);
  sequence.reset();
  fork.reset();
  EXPECT_EQ(world.cache->Evict(10), 2u);
  EXPECT_EQ(world.cache->stats().hot_bytes_used, 0u);
}

TEST(Tenants, ErasedIsErased) {
  TenantsWorld world(20);
  const TenantId a = world.Add("a");
  const TenantId b = world.Add("b");
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  const auto bystander = world.Run(b, prompt);
  {
    const auto sequence = Must(world.TryOpen(a, prompt));
    world.Plant(*sequence, prompt, kSecret);
  }
  ASSERT_GT(world.Planted(kSecret), 0u) << "the test must be able to fail";
  const EraseReport report = Must(world.cache->Erase(a));
  EXPECT_EQ(report.blocks, 3u);
  EXPECT_EQ(report.slots_zeroed, 4u) << "with the one that was free already";
  EXPECT_EQ(report.slots_pending, 0u);
  EXPECT_EQ(world.Planted(kSecret), 0u);
  EXPECT_EQ(world.SlotsOf(a), 0u);
  const Plan plan = world.Acquire(a, prompt);
  EXPECT_EQ(plan.resident_tokens(), 0u);
  EXPECT_EQ(plan.reason(), MissReason::kNeverSeen) << "not even that it was there";
  EXPECT_EQ(world.model.Differs(*bystander, prompt), "");
  EXPECT_EQ(world.Resident(b, prompt), 3u * kBlock);
  // And the tenant goes on.
  world.Run(a, prompt).reset();
  EXPECT_EQ(world.Resident(a, prompt), 3u * kBlock);
  EXPECT_EQ(world.cache->Erase(TenantId(9)).error().code, ErrorCode::kNotFound);
}

TEST(Tenants, WhatIsHeldIsZeroedAsItsLastHolderEnds) {
  TenantsWorld world(20);
  const TenantId a = world.Add("a");
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  auto sequence = Must(world.TryOpen(a, prompt));
  world.Plant(*sequence, prompt, kSecret);
  auto view = std::make_unique<BlockListView>(Must(sequence->View(0, StreamRole::kKey)));
  EXPECT_EQ(Must(world.cache->Erase(a)).slots_pending, 3u);
  EXPECT_EQ(world.Resident(a, prompt), 0u) << "nothing old matches at once";
  // The sequence continues, and publishes nothing any more.
  auto longer = Join(prompt, SomeTokens(2 * kBlock, 2));
  world.Plant(*sequence, std::span(longer).subspan(prompt.size()), kSecret);
  EXPECT_EQ(world.Resident(a, longer), 0u);
  const auto fork = Must(sequence->Fork());
  EXPECT_EQ(world.Stats(a).erase_pending_slots, 6u) << "two more, and the copy of the open one";
  fork->Reset();
  sequence.reset();
  EXPECT_GT(world.Planted(kSecret), 0u);
  EXPECT_EQ(world.Stats(a).erase_pending_slots, 3u);
  view.reset();
  EXPECT_EQ(world.Planted(kSecret), 0u);
  EXPECT_EQ(world.Stats(a).erase_pending_slots, 0u);
  EXPECT_EQ(SlotCharges(world.cache->stats()), 0u) << "but for the fork, which lives";
  EXPECT_EQ(world.cache->stats().published_blocks, 0u);
}

TEST(Tenants, APlanMadeBeforeAnErasurePublishesNothing) {
  TenantsWorld world(20);
  const TenantId a = world.Add("a");
  const auto prompt = SomeTokens(2 * kBlock + 1, 1);
  Plan plan = world.Acquire(a, prompt);
  Must(world.cache->Erase(a));
  const auto sequence = Must(world.cache->Open(std::move(plan), {}));
  Must(world.model.Feed(*sequence, prompt));
  EXPECT_EQ(world.cache->stats().published_blocks, 0u);
  EXPECT_EQ(world.Stats(a).erase_pending_slots, 3u);
}

TEST(Tenants, ErasingOneTakesWhatOthersPutBehindItInTheirDomain) {
  TenantsWorld world(20);
  const TenantId team = world.AddDomain("team");
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  const auto first = SomeTokens(2 * kBlock, 1);
  const auto longer = Join(first, SomeTokens(2 * kBlock + 1, 2));
  const auto unrelated = SomeTokens(2 * kBlock + 1, 3);
  world.Run(a, first).reset();
  world.Run(b, longer).reset();
  world.Run(b, unrelated).reset();
  EXPECT_EQ(Must(world.cache->Erase(a)).blocks, 4u);
  EXPECT_EQ(world.Resident(b, longer), 0u);
  EXPECT_EQ(world.Resident(b, unrelated), 2u * kBlock);
  EXPECT_EQ(world.cache->Erase(team).error().code, ErrorCode::kInvalidArgument);
}

// Its windows had passed them, so slots of another member were put into its blocks.
TEST(Tenants, ABlockThatGoesLeavesNothingInSlotsOfAnotherMember) {
  Geometry geometry = SmallGeometry();
  geometry.groups[0].kind = LayerKind::kWindow;
  geometry.groups[0].window_tokens = 2 * kBlock;
  TenantsWorld world(20, geometry);
  world.AddDomain("team");
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  const auto prompt = SomeTokens(8 * kBlock, 1);
  const auto front = std::span(prompt).first(3 * kBlock);
  {
    const auto of_a = Must(world.TryOpen(a, prompt, {.step_tokens = kBlock}));
    for (uint64_t end = kBlock; end <= prompt.size(); end += kBlock) {
      Must(world.model.Feed(*of_a, std::span(prompt).first(end)));
    }
    while (world.cache->stats().sealed.slots_used > 3) world.cache->Evict(1);
  }
  auto sequence = Must(world.cache->Open(
      Must(world.cache->Acquire(
          {.tenant = b, .identity = &world.identity, .tokens = front, .reuse = false})),
      {}));
  world.Plant(*sequence, front, kSecret);
  EXPECT_EQ(Must(world.cache->Erase(a)).blocks, 8u);
  ASSERT_GT(world.Planted(kSecret), 0u) << "the test must be able to fail";
  sequence.reset();
  EXPECT_EQ(world.Planted(kSecret), 0u);
}

TEST(Tenants, SlotsAreZeroedWhenTheyPassFromOneToAnother) {
  TenantsWorld world(3);
  const TenantId a = world.Add("a");
  const TenantId b = world.Add("b");
  const auto prompt = SomeTokens(3 * kBlock, 1);
  {
    const auto sequence = Must(world.TryOpen(a, prompt));
    world.Plant(*sequence, prompt, kSecret);
  }
  ASSERT_GT(world.Planted(kSecret), 0u);
  const auto of_b = Must(world.TryOpen(b, SomeTokens(3 * kBlock, 2)));
  EXPECT_EQ(world.Planted(kSecret), 0u) << "before it writes a single row";
}

// Two worlds that differ only in what one tenant caches: the other tenant sees no difference.
TEST(Tenants, NothingOneReadsDependsOnWhatAnotherCached) {
  const auto what_a_reads = [](bool same_prompts) {
    TenantsWorld world(12);
    const TenantId a = world.Add("a", 9, 2);
    const TenantId b = world.Add("b");
    std::string all;
    Prng prng(7);
    for (uint64_t step = 0; step < 60; ++step) {
      const uint64_t which = prng.NextBelow(4);
      const uint64_t tokens = 1 + prng.NextBelow(5 * kBlock);
      // As long as the prompts of a, in the same order: either the same ones, or others.
      const auto of_a = SomeTokens(tokens, which);
      const auto of_b = SomeTokens(tokens, which + (same_prompts ? 0 : 100));
      if (prng.NextChance(2)) {
        if (auto opened = world.TryOpen(b, of_b)) Must(world.model.Feed(**opened, of_b));
      }
      Plan plan = world.Acquire(a, of_a);
      for (const MissRun& run : plan.missing()) {
        all += std::string(MissReasonName(run.reason)) + std::to_string(run.tokens) + "@" +
               std::to_string(run.gone_us) + " ";
      }
      auto opened = world.cache->Open(std::move(plan), {});
      if (opened) Must(world.model.Feed(**opened, of_a));
      all += opened ? ToJson((*opened)->stats()) : opened.error().message;
      all += ToJson(world.Stats(a)) + "\n";
      world.clock.Advance(1);
    }
    return all;
  };
  EXPECT_EQ(what_a_reads(true), what_a_reads(false));
}

// Random lives of three tenants: the accounts add up, quotas and floors hold after every call.
TEST(Tenants, TheAccountsAddUp) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Prng prng(seed);
    TenantsWorld world(14);
    world.AddDomain("team", 5);
    const std::vector<TenantId> tenants = {world.Add("a", 6, 2), world.Add("b", 0, 3),
                                           world.Add("c", 0, 0, "team"),
                                           world.Add("d", 4, 0, "team")};
    std::vector<std::unique_ptr<Sequence>> open;
    std::vector<uint64_t> before(6);
    for (uint64_t step = 0; step < 150; ++step) {
      const TenantId acting = tenants[prng.NextBelow(tenants.size())];
      const uint64_t what = prng.NextBelow(10);
      if (what < 7) {
        const auto prompt = SomeTokens(1 + prng.NextBelow(5 * kBlock), prng.NextBelow(5));
        if (auto opened = world.TryOpen(acting, prompt)) {
          Must(world.model.Feed(**opened, prompt));
          ASSERT_EQ(world.model.Differs(**opened, prompt), "");
          if (prng.NextChance(3)) open.push_back(*std::move(opened));
        }
      } else if (what < 9 && !open.empty()) {
        open.erase(open.begin() + static_cast<int64_t>(prng.NextBelow(open.size())));
      } else if (prng.NextChance(3)) {
        Must(world.cache->Erase(acting));
      }
      uint64_t sum = 0;
      for (uint32_t id = 0; id < 6; ++id) {
        const TenantStats stats = world.Stats(TenantId(id));
        sum += stats.bytes_used;
        ASSERT_LE(stats.bytes_used, stats.quota_bytes == 0 ? UINT64_MAX : stats.quota_bytes);
        // Only its own calls, or an end of one of its sequences, bring it below its floor.
        if (what < 7 && TenantId(id) != acting) {
          ASSERT_GE(stats.bytes_used, std::min(before[id], stats.floor_bytes));
        }
        before[id] = stats.bytes_used;
      }
      ASSERT_EQ(sum, world.cache->stats().hot_bytes_used);
    }
    open.clear();
    for (const TenantId tenant : tenants) Must(world.cache->Erase(tenant));
    EXPECT_EQ(world.cache->stats().hot_bytes_used, 0u);
    const std::byte* const bytes = OnHost(world.seen.arena().data());
    for (const std::byte byte : std::span(bytes, world.seen.arena().size())) {
      ASSERT_EQ(byte, std::byte{0});
    }
  }
}

// Blocks that were evicted before the erasure are remembered in the domain, for all its members.
TEST(Tenants, AfterAnErasureNoMemberOfTheDomainLearnsOfIt) {
  TenantsWorld world(40);
  world.AddDomain("team");
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  const auto secret = SomeTokens(4 * kBlock, 1);
  const auto shared = SomeTokens(3 * kBlock, 2);
  world.Run(a, secret).reset();
  world.Run(b, Join(secret, SomeTokens(2 * kBlock, 3))).reset();
  world.Run(b, shared).reset();
  world.cache->Evict(100);
  const auto asked = Join(secret, SomeTokens(5, 9));
  EXPECT_EQ(world.Acquire(b, asked).reason(), MissReason::kEvicted);
  Must(world.cache->Erase(a));
  const Plan gone = world.Acquire(b, asked);
  EXPECT_EQ(gone.reason(), MissReason::kNeverSeen);
  for (const MissRun& run : gone.missing()) EXPECT_EQ(run.gone_us, 0u);
  EXPECT_EQ(world.Acquire(b, Join(shared, SomeTokens(5, 9))).reason(), MissReason::kEvicted)
      << "of its own it still hears";
  // Published again and evicted again by b: that is remembered as b's own block.
  world.Run(b, secret).reset();
  world.cache->Evict(100);
  EXPECT_EQ(world.Acquire(b, asked).reason(), MissReason::kEvicted);
}

// A block that failed a check before its publisher was erased is not called damaged afterwards, nor
// is an erased block found under another root.
TEST(Tenants, ErasedBlocksHaveNoReasonOfTheirOwn) {
  TenantsWorld world(40);
  world.AddDomain("team");
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  const auto secret = SomeTokens(4 * kBlock, 1);
  const auto held = world.Run(a, secret);
  FlipBit(*held, 1);
  EXPECT_EQ(world.cache->Verify().damaged, 1u);
  const auto asked = Join(secret, SomeTokens(5, 9));
  EXPECT_EQ(world.Acquire(b, asked).reason(), MissReason::kDamaged);
  Identity other = world.identity;
  other.adapter = "another";
  const auto reason_elsewhere = [&] {
    return Must(world.cache->Acquire({.tenant = b, .identity = &other, .tokens = asked})).reason();
  };
  EXPECT_EQ(reason_elsewhere(), MissReason::kOtherProfile);
  Must(world.cache->Erase(a));
  EXPECT_EQ(world.Acquire(b, asked).reason(), MissReason::kNeverSeen);
  EXPECT_EQ(reason_elsewhere(), MissReason::kNeverSeen);
}

// Block ids that descend along a path: each block once needed a pass over all blocks.
TEST(Tenants, ErasingALongPathTakesWhatContinuesItAlong) {
  TenantsWorld world(3000);
  world.AddDomain("team");
  const TenantId a = world.Add("a", 0, 0, "team");
  const TenantId b = world.Add("b", 0, 0, "team");
  for (uint64_t i = 0; i < 2000; ++i) world.Run(b, SomeTokens(kBlock, 10 + i)).reset();
  world.cache->Evict(2000);
  const auto path = SomeTokens(2000 * kBlock, 1);
  world.Run(a, std::span(path).first(kBlock)).reset();
  world.Run(b, path).reset();
  world.Run(b, SomeTokens(4 * kBlock, 2)).reset();
  EXPECT_EQ(Must(world.cache->Erase(a)).blocks, 2000u);
  EXPECT_EQ(world.cache->stats().published_blocks, 4u);
}

TEST(Tenants, OneThatIsRemovedLeavesNothingButItsName) {
  TenantsWorld world(20);
  const TenantId a = Must(world.cache->AddTenant({.name = "a", .floor_bytes = world.charge_bytes}));
  const auto prompt = SomeTokens(3 * kBlock, 1);
  world.Run(a, prompt).reset();
  ASSERT_GT(world.Stats(a).bytes_used, 0u);
  Must(world.cache->RemoveTenant(a));
  EXPECT_EQ(world.cache->stats().hot_bytes_used, 0u);
  EXPECT_EQ(world.cache->stats().published_blocks, 0u);
  EXPECT_EQ(world.cache->FindTenant("a").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(world.cache->tenant_stats(a).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(world.cache->Erase(a).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(world.cache->RemoveTenant(a).error().code, ErrorCode::kNotFound);
  // The floor is free again, and the name; a new tenant of that name does not find the old blocks.
  const TenantId again = Must(
      world.cache->AddTenant({.name = "a", .floor_bytes = world.cache->stats().hot_bytes_limit}));
  EXPECT_NE(again, a);
  const Plan plan = world.Acquire(again, Join(prompt, SomeTokens(1, 2)));
  EXPECT_EQ(plan.resident_tokens(), 0u);
  EXPECT_EQ(plan.reason(), MissReason::kNeverSeen);
}

TEST(Tenants, OneThatHoldsSomethingIsNotRemoved) {
  TenantsWorld world(20);
  const TenantId a = Must(world.cache->AddTenant({.name = "a"}));
  const auto prompt = SomeTokens(2 * kBlock, 1);
  auto sequence = world.Run(a, prompt);
  Plan empty = world.Acquire(a, SomeTokens(2 * kBlock, 7));
  const auto refused = world.cache->RemoveTenant(a);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_EQ(Must(world.cache->FindTenant("a")), a);
  sequence.reset();
  Must(world.cache->RemoveTenant(a));
  // A plan that holds nothing outlives its tenant; it cannot be opened.
  EXPECT_FALSE(world.cache->Open(std::move(empty), {}).has_value());
  EXPECT_EQ(world.cache->stats().hot_bytes_used, 0u);
}

TEST(Tenants, ADomainGoesAfterItsMembers) {
  TenantsWorld world(20);
  const TenantId house = Must(world.cache->AddTenant({.name = "house", .shared = true}));
  const TenantId a = Must(world.cache->AddTenant({.name = "a", .domain = "house"}));
  const TenantId b = Must(world.cache->AddTenant({.name = "b", .domain = "house"}));
  const auto prompt = SomeTokens(2 * kBlock, 1);
  world.Run(a, prompt).reset();
  EXPECT_EQ(world.cache->RemoveTenant(house).error().code, ErrorCode::kBusy);
  EXPECT_EQ(world.cache->RemoveTenant(kDefaultTenant).error().code, ErrorCode::kInvalidArgument);
  Must(world.cache->RemoveTenant(a));
  // No member of the domain learns what it had.
  EXPECT_EQ(world.Acquire(b, Join(prompt, SomeTokens(1, 2))).reason(), MissReason::kNeverSeen);
  Must(world.cache->RemoveTenant(b));
  Must(world.cache->RemoveTenant(house));
  EXPECT_EQ(world.cache->AddTenant({.name = "c", .domain = "house"}).error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire::cache

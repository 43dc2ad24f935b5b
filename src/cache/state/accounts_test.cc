// What the accounts decide by numbers of their own: shares of memory, names that come back, when a
// priority ends. What follows from sums is in accounts_prop_test.cc.
#include "cache/state/accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cache/state/ghosts.h"
#include "cache/test_util.h"
#include "evict/reuse_estimator.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

struct World {
  explicit World(uint64_t slots, const std::string& policy = "lru")
      : classes(Must(SlotClasses::Create(Options(slots, policy)))),
        capacity(classes.CapacityFor(Options(slots, policy).hot_bytes)),
        accounts(classes, clock, policy, EvictionBatch::kExact, capacity, nullptr) {}

  static CacheOptions Options(uint64_t slots, const std::string& policy) {
    const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    return {.geometry = SmallGeometry(),
            .profile = profile,
            .hot_bytes = slots * ChargePerSlot(SmallGeometry(), profile, policy),
            .policy = policy};
  }
  void SetClock(uint64_t now_us) { clock.Advance(now_us - clock.NowMicros()); }
  TenantId Add(const std::string& name) { return Must(accounts.Add({.name = name})); }
  void List(uint32_t block, uint64_t bytes, uint64_t twin_bytes = 0,
            Listed listed = Listed::kWhole) {
    accounts.order().List(BlockId(block), kDefaultTenant,
                          {.listed = listed, .bytes = bytes, .twin_bytes = twin_bytes}, {});
  }

  ManualClock clock{0};
  SlotClasses classes;
  Capacity capacity;
  Accounts accounts;
};

// Each slot pays for one block that is remembered. Another tenant takes 3072 bytes, and the tenants
// share the rest.
TEST(Accounts, ShareMemoryEqually) {
  World world(1000);
  EXPECT_EQ(world.accounts.share(), 1000u);
  const uint64_t memory_bytes = 1000 * world.classes.memory_bytes();
  for (uint64_t tenants = 2; tenants < 12; ++tenants) {
    world.Add("t" + std::to_string(tenants));
    const uint64_t left_bytes = memory_bytes - (tenants - 1) * 3072;
    EXPECT_EQ(world.accounts.share(), left_bytes / world.classes.memory_bytes() / tenants);
  }
  const uint64_t before = world.accounts.share();
  const TenantId last = world.Add("last");
  EXPECT_LT(world.accounts.share(), before);
  Must(world.accounts.Remove(last));
  EXPECT_EQ(world.accounts.share(), before);
  Capacity half = world.capacity;
  half.ledger_bytes = 500 * world.classes.charge_bytes(uint32_t{0});
  world.accounts.SetCapacity(half);
  EXPECT_EQ(world.accounts.share(),
            (memory_bytes / 2 - 10 * 3072) / world.classes.memory_bytes() / 11);
}

// One slot pays for a ghost, for a block whose uses are counted, and for the policy's history.
TEST(Accounts, ASlotPaysForOneBlockOfEachMemory) {
  EXPECT_GT(World(10, "quire").classes.history_bytes(), 0u);
  EXPECT_EQ(World(10, "lru").classes.history_bytes(), 0u);
  for (const char* policy : {"quire", "lru"}) {
    const World world(10, policy);
    EXPECT_EQ(world.classes.memory_bytes(), Ghosts::kBytesEach + evict::ReuseEstimator::kBytesEach +
                                                world.classes.history_bytes());
  }
}

// However many there are, each remembers 8 blocks, or its part of a cache that has fewer slots.
TEST(Accounts, EveryTenantRemembersALittle) {
  World world(100);
  for (int i = 1; i < 10; ++i) world.Add("t" + std::to_string(i));
  EXPECT_EQ(world.accounts.share(), 8u);
  for (int i = 10; i < 50; ++i) world.Add("t" + std::to_string(i));
  EXPECT_EQ(world.accounts.share(), 2u);
}

TEST(Accounts, FloorsMayBeAsHighAsQuotas) {
  World world(100);
  const uint64_t charge = world.classes.charge_bytes(uint32_t{0});
  const auto refused = [&](TenantOptions options, const std::string& names) {
    const auto added = world.accounts.Add(options);
    ASSERT_FALSE(added.has_value());
    EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(added.error().message, HasSubstr(names));
  };
  Must(world.accounts.Add({.name = "a", .quota_bytes = charge, .floor_bytes = charge}));
  refused({.name = "b", .quota_bytes = charge, .floor_bytes = charge + 1}, "a floor of");
  Must(world.accounts.Add({.name = "c", .store_quota_bytes = 10, .store_floor_bytes = 10}));
  refused({.name = "d", .store_quota_bytes = 10, .store_floor_bytes = 11}, "a store_floor of 11");
  Must(world.accounts.Add({.name = "e", .store_floor_bytes = 11}));
  refused({.name = "e"}, "the name is taken");
  refused({.name = ""}, "the name is empty");
}

TEST(Accounts, ANameThatComesBackIsAnotherEpoch) {
  World world(100);
  const TenantId first = world.Add("a");
  world.accounts.Erase(first);
  EXPECT_EQ(world.accounts.tenants().epoch(first), 1u);
  Must(world.accounts.Remove(first));
  EXPECT_FALSE(world.accounts.tenants().Check(first).has_value());
  EXPECT_FALSE(world.accounts.tenants().Find("a").has_value());
  const TenantId second = world.Add("a");
  EXPECT_NE(second, first);
  EXPECT_EQ(world.accounts.tenants().epoch(second), 2u);
  EXPECT_EQ(Must(world.accounts.tenants().Find("a")), second);
  EXPECT_EQ(world.accounts.tenants().epoch(world.Add("b")), 0u);
}

TEST(Accounts, OnlyATenantThatPaysForNothingCanBeRemoved) {
  World world(100);
  const uint64_t charge = world.classes.charge_bytes(uint32_t{0});
  const TenantId tenant = world.Add("a");
  const auto busy = [&](const std::string& names) {
    const auto removed = world.accounts.Remove(tenant);
    ASSERT_FALSE(removed.has_value());
    EXPECT_EQ(removed.error().code, ErrorCode::kBusy);
    EXPECT_THAT(removed.error().message, HasSubstr(names));
  };
  world.accounts.charges().CountWritten(tenant, /*epoch=*/0, 2);
  busy("hold 2 slots of it, and 0 bytes");
  world.accounts.Erase(tenant);
  world.accounts.charges().CountWritten(tenant, /*epoch=*/1, 1);
  busy("hold 3 slots");  // of both epochs
  world.accounts.charges().CountWritten(tenant, /*epoch=*/0, -2);
  world.accounts.charges().CountWritten(tenant, /*epoch=*/1, -1);
  ASSERT_TRUE(world.accounts.charges().TryCharge(tenant, charge));
  busy("and " + std::to_string(charge) + " bytes");
  world.accounts.charges().Refund(tenant, charge);
  const TenantId house = Must(world.accounts.Add({.name = "house", .shared = true}));
  Must(world.accounts.Add({.name = "m", .domain = "house"}));
  Must(world.accounts.Add({.name = "n", .domain = "house"}));
  const auto kept = world.accounts.tenants().CheckRemovable(house);
  ASSERT_FALSE(kept.has_value());
  EXPECT_THAT(kept.error().message, HasSubstr("2 tenants publish to it"));
  EXPECT_FALSE(world.accounts.tenants().CheckRemovable(kDefaultTenant).has_value());
  Must(world.accounts.tenants().CheckRemovable(tenant));
  Must(world.accounts.Remove(tenant));
}

// Policies go by milliseconds: a priority lasts until the first millisecond that is not before its
// end.
TEST(Accounts, APriorityEndsWithItsMillisecond) {
  struct Case {
    uint64_t until_us;
    uint64_t last_ms;  // at which it still holds
  };
  for (const auto& [until_us, last_ms] :
       {Case{2000, 1}, Case{2001, 2}, Case{2999, 2}, Case{3000, 2}}) {
    World world(100, "priority");
    world.accounts.order().Retain(BlockId(0), /*priority=*/90, until_us);
    world.List(0, 10);
    world.List(1, 10);
    world.SetClock(last_ms * 1000);
    world.accounts.order().Advance();
    EXPECT_EQ(world.accounts.order().WholeVictim(kDefaultTenant), BlockId(1)) << until_us;
    world.SetClock((last_ms + 1) * 1000);
    world.accounts.order().Advance();
    EXPECT_EQ(world.accounts.order().WholeVictim(kDefaultTenant), BlockId(0)) << until_us;
  }
  World world(100, "priority");
  world.accounts.order().Retain(BlockId(0), /*priority=*/90, UINT64_MAX);
  world.List(0, 10);
  world.List(1, 10);
  world.SetClock(UINT64_MAX);
  world.accounts.order().Advance();
  EXPECT_EQ(world.accounts.order().WholeVictim(kDefaultTenant), BlockId(1)) << "for good";
}

// When a priority has ended, the next one counts by itself.
TEST(Accounts, APriorityThatIsOverRaisesNoOther) {
  for (const bool is_over : {false, true}) {
    World world(100, "priority");
    world.accounts.order().Retain(BlockId(0), /*priority=*/90, 1000);
    world.SetClock(is_over ? 1000 : 999);
    world.accounts.order().Retain(BlockId(0), /*priority=*/10, 5000);
    world.List(0, 10);
    world.List(1, 10);
    EXPECT_EQ(world.accounts.order().WholeVictim(kDefaultTenant), BlockId(is_over ? 0 : 1));
  }
}

// Twins are evicted before their block, unless the block has no other bytes.
TEST(Accounts, WhatGoesOfABlock) {
  World world(100);
  world.List(0, /*bytes=*/30, /*twin_bytes=*/10);
  EXPECT_EQ(world.accounts.order().VictimOf(kDefaultTenant)->goes, Goes::kTwins);
  EXPECT_EQ(world.accounts.order().VictimOf(kDefaultTenant)->bytes, 10u);
  world.List(0, /*bytes=*/10, /*twin_bytes=*/10);
  EXPECT_EQ(world.accounts.order().VictimOf(kDefaultTenant)->goes, Goes::kWhole);
  world.List(0, /*bytes=*/10, /*twin_bytes=*/1);
  EXPECT_EQ(world.accounts.order().VictimOf(kDefaultTenant)->goes, Goes::kTwins);
  world.List(0, /*bytes=*/7, /*twin_bytes=*/7, Listed::kSlots);
  EXPECT_EQ(world.accounts.order().VictimOf(kDefaultTenant)->goes, Goes::kSlots);
  EXPECT_EQ(world.accounts.order().evictable_bytes(kDefaultTenant), 7u);
}

}  // namespace
}  // namespace quire::cache

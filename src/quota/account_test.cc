#include "quota/account.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::quota {
namespace {

TEST(Account, ChargesUpToTheQuota) {
  Account account(100, 40);
  EXPECT_EQ(account.used_bytes(), 0u);
  EXPECT_EQ(account.peak_bytes(), 0u);
  account.Charge(100);
  EXPECT_EQ(account.capacity_bytes(), 0u);
  account.Refund(70);
  EXPECT_EQ(account.used_bytes(), 30u);
  EXPECT_EQ(account.peak_bytes(), 100u);
  EXPECT_EQ(account.capacity_bytes(), 70u);
}

TEST(AccountDeathTest, ChargingPastTheQuotaIsABug) {
  Account account(100, 0);
  account.Charge(60);
  EXPECT_DEATH(account.Charge(41), "over the quota by 1");
  EXPECT_DEATH(account.Refund(61), "");
}

TEST(Account, MayNotLoseWhatIsBelowTheFloor) {
  Account account(100, 40);
  account.Charge(50);
  EXPECT_TRUE(account.MayLose(10));
  EXPECT_FALSE(account.MayLose(11));
  account.Refund(30);
  EXPECT_FALSE(account.MayLose(1));
}

// Against evicting one victim after the other.
TEST(Account, SpareIsWhatEvictingGives) {
  for (uint64_t victim = 1; victim <= 5; ++victim) {
    for (uint64_t floor = 0; floor < 20; ++floor) {
      for (uint64_t others = 0; others < 7; ++others) {
        for (uint64_t victims = 0; victims < 5; ++victims) {
          Account account(100, floor);
          account.Charge(others + victims * victim);
          const uint64_t same = account.Spare(victims * victim, victim, /*same_size=*/true);
          const uint64_t any = account.Spare(victims * victim, victim, /*same_size=*/false);
          uint64_t got = 0;
          while (got < victims * victim && account.MayLose(victim)) {
            account.Refund(victim);
            got += victim;
          }
          EXPECT_EQ(same, got);
          EXPECT_LE(any, got);
          // All of them where the floor is not in the way, else at most one victim less.
          const uint64_t above =
              others + victims * victim - std::min(others + victims * victim, floor);
          EXPECT_EQ(any == victims * victim, victims * victim <= above);
          EXPECT_GE(any + victim, std::min(above, victims * victim));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::quota

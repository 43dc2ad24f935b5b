#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "quota/ledger.h"

namespace quire::quota {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Ledger, ChargesUpToTheLimitAndNotAByteMore) {
  Ledger ledger(100);
  EXPECT_TRUE(ledger.TryCharge(60));
  EXPECT_FALSE(ledger.TryCharge(41));
  EXPECT_EQ(ledger.used_bytes(), 60u) << "a refused charge must change nothing";
  EXPECT_TRUE(ledger.TryCharge(40));
  EXPECT_FALSE(ledger.TryCharge(1));
  EXPECT_TRUE(ledger.TryCharge(0));
  EXPECT_EQ(ledger.available_bytes(), 0u);
  EXPECT_EQ(ledger.limit_bytes(), 100u);
}

TEST(Ledger, PeakStaysAfterARefund) {
  Ledger ledger(100);
  EXPECT_EQ(ledger.peak_bytes(), 0u);
  ASSERT_TRUE(ledger.TryCharge(70));
  ledger.Refund(50);
  ASSERT_TRUE(ledger.TryCharge(10));
  EXPECT_EQ(ledger.used_bytes(), 30u);
  EXPECT_EQ(ledger.peak_bytes(), 70u);
}

TEST(Ledger, TheLimitMovesAndThePeakBeginsAnew) {
  Ledger ledger(100);
  ASSERT_TRUE(ledger.TryCharge(90));
  ledger.Refund(40);
  ledger.SetLimit(60);
  EXPECT_EQ(ledger.limit_bytes(), 60u);
  EXPECT_EQ(ledger.available_bytes(), 10u);
  EXPECT_EQ(ledger.peak_bytes(), 50u);
  EXPECT_FALSE(ledger.TryCharge(11));
  ledger.SetLimit(200);
  EXPECT_TRUE(ledger.TryCharge(150));
  EXPECT_EQ(ledger.peak_bytes(), 200u);
  EXPECT_DEATH(ledger.SetLimit(199), "a limit of 199 bytes with 200 charged");
}

TEST(Ledger, SumsThatWouldOverflowAreRefused) {
  Ledger ledger(kMax);
  ASSERT_TRUE(ledger.TryCharge(kMax - 1));
  EXPECT_FALSE(ledger.TryCharge(kMax));
  EXPECT_FALSE(ledger.TryCharge(2));
  EXPECT_TRUE(ledger.TryCharge(1));
  EXPECT_EQ(ledger.used_bytes(), kMax);
  ledger.Refund(kMax);
  EXPECT_EQ(ledger.used_bytes(), 0u);
}

TEST(Ledger, SeveralShareOneBudget) {
  Ledger budget(100);
  Ledger a(80, &budget);
  Ledger b(100, &budget);
  EXPECT_FALSE(a.TryCharge(81));
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_TRUE(a.TryCharge(70));
  EXPECT_EQ(b.available_bytes(), 30u);
  EXPECT_FALSE(b.TryCharge(31));
  EXPECT_EQ(b.used_bytes(), 0u);
  EXPECT_TRUE(b.TryCharge(30));
  EXPECT_EQ(a.available_bytes(), 0u);
  a.Refund(70);
  EXPECT_EQ(budget.used_bytes(), 30u);
  EXPECT_EQ(b.available_bytes(), 70u);
}

TEST(LedgerDeathTest, RefundingMoreThanWasChargedIsABug) {
  Ledger ledger(100);
  ASSERT_TRUE(ledger.TryCharge(5));
  EXPECT_DEATH(ledger.Refund(6), "refund of 6 bytes with 5 charged");
}

TEST(Ledger, ThreadsNeverSeeMoreThanTheLimit) {
  constexpr uint64_t kLimit = 10;
  Ledger ledger(kLimit);
  std::atomic<uint64_t> held = 0;  // counted apart from the ledger
  std::atomic<uint64_t> violations = 0;
  std::atomic<uint64_t> charged = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 200'000; ++i) {
        const uint64_t bytes = 1 + (i + t) % 5;
        if (!ledger.TryCharge(bytes)) continue;
        if (held.fetch_add(bytes) + bytes > kLimit) ++violations;
        if (ledger.used_bytes() > kLimit) ++violations;
        ++charged;
        held.fetch_sub(bytes);
        ledger.Refund(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(violations.load(), 0u);
  EXPECT_GT(charged.load(), 0u);
  EXPECT_EQ(ledger.used_bytes(), 0u);
  EXPECT_LE(ledger.peak_bytes(), kLimit);
}

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

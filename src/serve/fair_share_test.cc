#include "serve/fair_share.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

constexpr TenantId kA{1};
constexpr TenantId kB{2};

TEST(FairShare, CountsByWeight) {
  FairShare shares;
  shares.SetWeight(kB, 4);
  shares.Charge(kA, 100);
  shares.Charge(kB, 100);
  EXPECT_EQ(shares.served(kA), 100.0);
  EXPECT_EQ(shares.served(kB), 25.0);
  EXPECT_EQ(shares.ServedAfter(kB, 100), 50.0);
  EXPECT_EQ(shares.served(kB), 25.0);
}

TEST(FairShare, WhoWasIdleHasSavedNothingUp) {
  FairShare shares;
  shares.Enter(kA);
  shares.Charge(kA, 1000);
  shares.Enter(kB);
  EXPECT_EQ(shares.served(kB), 1000.0);
  // Another request of one that is there changes nothing.
  shares.Charge(kA, 500);
  shares.Enter(kB);
  EXPECT_EQ(shares.served(kB), 1000.0);
  shares.Leave(kB);
  shares.Enter(kB);
  EXPECT_EQ(shares.served(kB), 1000.0);
  shares.Leave(kB);
  shares.Leave(kB);
  shares.Enter(kB);
  EXPECT_EQ(shares.served(kB), 1500.0);
}

TEST(FairShare, WhoWasServedMoreIsNotForgiven) {
  FairShare shares;
  shares.Enter(kA);
  shares.Charge(kA, 1000);
  shares.Leave(kA);
  shares.Enter(kB);
  shares.Enter(kA);
  EXPECT_EQ(shares.served(kA), 1000.0);
  EXPECT_EQ(shares.served(kB), 0.0);
}

}  // namespace
}  // namespace quire::serve

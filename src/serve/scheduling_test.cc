#include <gtest/gtest.h>

#include "serve/scheduling.h"

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

TEST(ChunkSizeTest, DoublesWhileFourOfItsSizeFit) {
  ChunkSize chunk(16, 100);
  EXPECT_EQ(chunk.tokens(), 16u);
  chunk.Adapt(4 * 16 - 1);
  EXPECT_EQ(chunk.tokens(), 16u);
  chunk.Adapt(4 * 16);
  EXPECT_EQ(chunk.tokens(), 32u);
  chunk.Adapt(4 * 32);
  EXPECT_EQ(chunk.tokens(), 64u);
  chunk.Adapt(1'000'000);
  EXPECT_EQ(chunk.tokens(), 100u);  // no more than the upper bound
}

TEST(ChunkSizeTest, HalvesWhereTwoOfItsSizeDoNotFit) {
  ChunkSize chunk(16, 64);
  chunk.Adapt(1'000'000);
  chunk.Adapt(1'000'000);
  EXPECT_EQ(chunk.tokens(), 64u);
  chunk.Adapt(2 * 64);
  EXPECT_EQ(chunk.tokens(), 64u);
  chunk.Adapt(2 * 64 - 1);
  EXPECT_EQ(chunk.tokens(), 32u);
  chunk.Shrink();
  EXPECT_EQ(chunk.tokens(), 16u);
  chunk.Shrink();
  chunk.Adapt(0);
  EXPECT_EQ(chunk.tokens(), 16u);  // no fewer than the lower bound
}

TEST(ChunkSizeTest, TheLargestChunksDoNotOverflow) {
  ChunkSize chunk(UINT32_MAX - 1, UINT32_MAX);
  chunk.Adapt(UINT64_MAX);
  EXPECT_EQ(chunk.tokens(), UINT32_MAX);
}

}  // namespace
}  // namespace quire::serve

#include "base/prng.h"

#include <gtest/gtest.h>

#include <array>

namespace quire {
namespace {

// Made with the reference C code of splitmix64 and xoshiro256** (prng.di.unimi.it).
TEST(Prng, EqualsTheReferenceCode) {
  Prng prng(42);
  EXPECT_EQ(prng.Next64(), 0x15780b2e0c2ec716u);
  EXPECT_EQ(prng.Next64(), 0x6104d9866d113a7eu);
  EXPECT_EQ(prng.Next64(), 0xae17533239e499a1u);
  EXPECT_EQ(prng.Next64(), 0xecb8ad4703b360a1u);
}

TEST(Prng, BelowStaysBelowAndReachesEverything) {
  Prng prng(1);
  std::array<int, 7> seen = {};
  for (int i = 0; i < 70'000; ++i) ++seen.at(prng.NextBelow(7));
  for (const int count : seen) EXPECT_NEAR(count, 10'000, 500);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(prng.NextBelow(1), 0u);
}

// With a limit of 3 * 2^62 a plain remainder would hit the lowest third twice as often.
TEST(Prng, BelowHasNoModuloBias) {
  constexpr uint64_t kLimit = uint64_t{3} << 62;
  Prng prng(2);
  int lowest_third = 0;
  for (int i = 0; i < 30'000; ++i) lowest_third += prng.NextBelow(kLimit) < (kLimit / 3) ? 1 : 0;
  EXPECT_NEAR(lowest_third, 10'000, 500);
}

TEST(Prng, DoublesAndFloatsKeepTheirRange) {
  Prng prng(3);
  double sum = 0;
  double float_sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double unit = prng.NextDouble();
    ASSERT_GE(unit, 0.0);
    ASSERT_LT(unit, 1.0);
    sum += unit;
    const float ranged = prng.NextFloat(1.0f, 1.0f + 0x1p-23f);
    ASSERT_GE(ranged, 1.0f);
    ASSERT_LT(ranged, 1.0f + 0x1p-23f);
    float_sum += prng.NextFloat(-2.0f, 4.0f);
  }
  EXPECT_NEAR(float_sum / 100'000, 1.0, 0.05);
  EXPECT_NEAR(sum / 100'000, 0.5, 0.01);
}

TEST(PrngDeathTest, BelowZeroIsABug) {
  Prng prng(4);
  EXPECT_DEATH(prng.NextBelow(0), "limit > 0");
}

}  // namespace
}  // namespace quire

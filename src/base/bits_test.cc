#include "base/bits.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <limits>

namespace quire {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Bits, RoundingAtTheEdges) {
  EXPECT_EQ(DivUp(0u, 16), 0u);
  EXPECT_EQ(DivUp(1u, 16), 1u);
  EXPECT_EQ(DivUp(16u, 16), 1u);
  EXPECT_EQ(DivUp(17u, 16), 2u);
  EXPECT_EQ(DivUp(kMax, 1), kMax);
  EXPECT_EQ(DivUp(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(RoundUp(uint64_t{4097}, 4096), 8192u);
  EXPECT_EQ(RoundUp(uint64_t{8192}, 4096), 8192u);
  EXPECT_EQ(RoundDown(uint64_t{8191}, 4096), 4096u);
  EXPECT_EQ(RoundDown(7u, 8), 0u);
}

RC_GTEST_PROP(BitsProperty, RoundUpIsTheLeastMultiple, (uint32_t value)) {
  const uint64_t multiple = *rc::gen::inRange<uint64_t>(1, 100'000);
  const uint64_t up = RoundUp(uint64_t{value}, multiple);
  RC_ASSERT(up % multiple == 0u);
  RC_ASSERT(up >= value);
  RC_ASSERT(up - value < multiple);
  RC_ASSERT(DivUp(uint64_t{value}, multiple) * multiple == up);
}

TEST(Bits, PowersOfTwo) {
  EXPECT_FALSE(IsPow2(0u));
  EXPECT_TRUE(IsPow2(1u));
  EXPECT_FALSE(IsPow2(12u));
  EXPECT_TRUE(IsPow2(uint64_t{1} << 63));
}

TEST(Bits, CheckedArithmeticStopsAtTheEdge) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedMul(kMax / 3, 3), kMax);
  EXPECT_EQ(CheckedMul(kMax / 3 + 1, 3), std::nullopt);
  EXPECT_EQ(CheckedMul(kMax, 0), 0u);
  EXPECT_EQ(CheckedProduct(), 1u);
  EXPECT_EQ(CheckedProduct(uint64_t{3}, uint64_t{5}, uint64_t{7}), 105u);
  EXPECT_EQ(CheckedProduct(uint64_t{1} << 40, uint64_t{1} << 24, uint64_t{0}), std::nullopt);
}

TEST(Bits, ReversedOrderOfSixteenLanes) {
  constexpr uint32_t kOrder[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(BitReverse(i, 4), kOrder[i]);
  EXPECT_EQ(BitReverse(1, 32), 0x80000000u);
  EXPECT_EQ(BitReverse(0xffff, 0), 0u);
  EXPECT_EQ(BitReverse(0xf1, 4), 8u);
  // A shift too far compiles, but is no constant.
  static_assert(BitReverse(0xf1, 4) == 8 && BitReverse(~0u, 32) == ~0u);
}

RC_GTEST_PROP(BitsProperty, ReversingTwiceRestores, (uint32_t value)) {
  const uint32_t bits = *rc::gen::inRange<uint32_t>(0, 33);
  const uint32_t kept = bits == 32 ? value : value & ((1u << bits) - 1);
  RC_ASSERT(BitReverse(BitReverse(value, bits), bits) == kept);
}

}  // namespace
}  // namespace quire

#include "codec/formats/q25.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/prng.h"

namespace quire::codec {
namespace {

// All 32 points, each tried by its distance: the product with a point, which the code compares, is
// another form of it.
TEST(Q25, TheNearestPointIsChosen) {
  Prng prng(1);
  for (int i = 0; i < 20'000; ++i) {
    const float first = prng.NextFloat(-3.0f, 3.0f);
    const float second = prng.NextFloat(-3.0f, 3.0f);
    const auto distance = [&](uint8_t code) {
      return std::hypot(first - Q25::ValueOf(code), second - Q25::ValueOf(code | kSecondOfPair));
    };
    const uint8_t got = PairCode(first, second);
    ASSERT_LT(got, 32);
    for (uint8_t code = 0; code < 32; ++code) {
      ASSERT_LE(distance(got), distance(code) + 1e-5f) << first << " " << second;
    }
  }
}

TEST(Q25, EveryPointComesBack) {
  for (uint8_t code = 0; code < 32; ++code) {
    EXPECT_EQ(PairCode(Q25::ValueOf(code), Q25::ValueOf(code | kSecondOfPair)), code);
  }
}

// Each channel is in one pair, and PairOf finds it there.
TEST(Q25, PairsHoldEveryChannelOnce) {
  for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
    for (uint32_t dim = 1; dim <= 140; ++dim) {
      uint32_t channels = 0;
      for (uint32_t pair = 0; pair < PairCount(inner, dim); ++pair) {
        const ChannelPair at = PairAt(inner, dim, pair);
        ASSERT_LT(at.first, dim);
        ASSERT_EQ(PairOf(inner, at.first).pair, pair);
        ASSERT_FALSE(PairOf(inner, at.first).second);
        ++channels;
        if (at.second == dim) continue;
        ASSERT_EQ(PairOf(inner, at.second).pair, pair);
        ASSERT_TRUE(PairOf(inner, at.second).second);
        ++channels;
      }
      ASSERT_EQ(channels, dim);
    }
  }
}

}  // namespace
}  // namespace quire::codec

#include "codec/formats/nf4.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire::codec {
namespace {

// Each code is the nearest one to its own value, and between two the nearer one wins.
TEST(Nf4, CodesAreTheNearest) {
  for (float value = -1.2f; value <= 1.2f; value += 0.0002f) {
    const float got = Nf4::ValueOf(Nf4::CodeOf(value));
    for (const float other : Nf4::kValues) {
      ASSERT_LE(std::fabs(got - value), std::fabs(other - value) + 1e-6f) << value;
    }
  }
}

TEST(Nf4, EveryCodeComesBack) {
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(Nf4::CodeOf(Nf4::ValueOf(code)), code);
    EXPECT_EQ(Nf4::IntegerOf(code), kNf4Integers[code]);
  }
  EXPECT_EQ(Nf4::ValueOf(7), 0.0f);
  EXPECT_EQ(Nf4::kCodeMax, 1.0f);
  EXPECT_EQ(Nf4::kBias, 63);
}

}  // namespace
}  // namespace quire::codec

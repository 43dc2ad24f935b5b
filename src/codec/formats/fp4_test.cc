#include "codec/formats/fp4.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire::codec {
namespace {

TEST(Fp4, CodesAreTheNearest) {
  for (float value = -7.0f; value <= 7.0f; value += 0.001f) {
    const float got = Fp4::ValueOf(Fp4::CodeOf(value));
    for (const float other : Fp4::kValues) {
      ASSERT_LE(std::fabs(got - value), std::fabs(other - value) + 1e-6f) << value;
    }
  }
}

TEST(Fp4, TiesGoToTheCodeWithAnEvenMantissa) {
  EXPECT_EQ(Fp4::CodeOf(0.25f), 0);
  EXPECT_EQ(Fp4::CodeOf(0.75f), 2);
  EXPECT_EQ(Fp4::CodeOf(2.5f), 4);
  EXPECT_EQ(Fp4::CodeOf(-5.0f), 14);
  EXPECT_EQ(Fp4::CodeOf(1e30f), 7);
}

}  // namespace
}  // namespace quire::codec

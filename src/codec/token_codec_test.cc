#include "codec/token_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire::codec {
namespace {

TEST(TokenCodec, F16NotBelowIsTheNextOne) {
  for (uint32_t code = 0; code < 0x7bff; ++code) {
    const float value = F16ToF32(static_cast<uint16_t>(code));
    ASSERT_EQ(F16NotBelow(value), code);
    const float next = F16ToF32(static_cast<uint16_t>(code + 1));
    ASSERT_EQ(F16NotBelow(std::nextafter(value, next)), code + 1);
    ASSERT_EQ(F16NotBelow(std::nextafter(next, value)), code + 1);
  }
  EXPECT_EQ(F16NotBelow(1e-40f), 1);
  EXPECT_EQ(F16NotBelow(-0.0f), 0);
  EXPECT_EQ(F16NotBelow(65505.0f), 0x7bff);
  EXPECT_EQ(F16NotBelow(std::numeric_limits<float>::infinity()), 0x7bff);
  EXPECT_EQ(F16NotBelow(std::numeric_limits<float>::quiet_NaN()), 0x7bff);
}

}  // namespace
}  // namespace quire::codec

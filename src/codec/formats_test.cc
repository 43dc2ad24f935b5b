#include "codec/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "codec/token_codec.h"

namespace quire::codec {
namespace {

TEST(Formats, F16NotBelowIsTheNextOne) {
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

// Every code is the nearest one to its own value, and between neighbours the nearer one wins.
TEST(Formats, FourBitCodesAreTheNearest) {
  for (const Codec codec : {Codec::kNf4, Codec::kFp4}) {
    const auto& table = codec == Codec::kNf4 ? kNf4Table : kFp4Table;
    const TokenScale unit{.scale = 0x3c00, .inverse = 1.0f};
    for (float x = -7.0f; x <= 7.0f; x += 0.001f) {
      const float value = codec == Codec::kNf4 ? x / 6.0f : x;
      const float got = table[CodeOf(codec, value, unit)];
      for (const float other : table) {
        ASSERT_LE(std::fabs(got - value), std::fabs(other - value) + 1e-6f) << value;
      }
    }
  }
  // Ties go to the code with an even mantissa.
  EXPECT_EQ(F32ToFp4(0.25f), 0);
  EXPECT_EQ(F32ToFp4(0.75f), 2);
  EXPECT_EQ(F32ToFp4(2.5f), 4);
  EXPECT_EQ(F32ToFp4(-5.0f), 14);
  EXPECT_EQ(F32ToFp4(1e30f), 7);
}

TEST(Formats, BothEndsOfARangeHaveACode) {
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (const float low : {-65504.0f, -1000.5f, -3.0f, -1e-7f, 0.0f, 999.0f}) {
      for (const float width : {0.0f, 6e-8f, 0.5f, 8.0f, 60000.0f}) {
        const float high = std::min(F16ToF32(F32ToStoredF16(low + width)), 65504.0f);
        const float values[] = {low, high};
        uint8_t codes[2];
        const TokenScale token = EncodeToken(codec, values, codes);
        const float scale = F16ToF32(token.scale);
        for (size_t i = 0; i < 2; ++i) {
          const float back = token.offset + scale * CodeValue(codec, codes[i]);
          // Within half a step: no end was cut off.
          EXPECT_LE(std::fabs(back - values[i]), scale * 0.5f + std::fabs(values[i]) * 1e-6f)
              << CodecName(codec) << " " << low << " " << high;
        }
      }
    }
  }
}

TEST(Formats, ATokenOfOneValueIsExactInTheCodecsWithMids) {
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (uint32_t half = 0; half < 0x7c00; half += 7) {
      const std::vector<float> values(8, F16ToF32(static_cast<uint16_t>(half)));
      uint8_t codes[8];
      const TokenScale token = EncodeToken(codec, values, codes);
      ASSERT_EQ(token.offset + F16ToF32(token.scale) * CodeValue(codec, codes[0]), values[0]);
    }
  }
}

}  // namespace
}  // namespace quire::codec

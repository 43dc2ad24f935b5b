#include "codec/formats/int.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/float_bits.h"
#include "codec/token_codec.h"
#include "quire/geometry.h"

namespace quire::codec {
namespace {

TEST(Int, BothEndsOfARangeHaveACode) {
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (const float low : {-65504.0f, -1000.5f, -3.0f, -1e-7f, 0.0f, 999.0f}) {
      for (const float width : {0.0f, 6e-8f, 0.5f, 8.0f, 60000.0f}) {
        const float high = std::min(F16ToF32(F32ToStoredF16(low + width)), 65504.0f);
        const float values[] = {low, high};
        uint8_t codes[2];
        const TokenScale token = EncodeToken(codec, InnerAxis::kDim, values, codes);
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

TEST(Int, ATokenOfOneValueIsExact) {
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (uint32_t f16 = 0; f16 < 0x7c00; f16 += 7) {
      const std::vector<float> values(8, F16ToF32(static_cast<uint16_t>(f16)));
      uint8_t codes[8];
      const TokenScale token = EncodeToken(codec, InnerAxis::kDim, values, codes);
      ASSERT_EQ(token.offset + F16ToF32(token.scale) * CodeValue(codec, codes[0]), values[0]);
    }
  }
}

// Halfway values go to the even integer, and nothing leaves the range.
TEST(Int, CodesAreTheNearestIntegers) {
  for (float scaled = -140.0f; scaled <= 140.0f; scaled += 0.125f) {
    const float integer = std::nearbyint(scaled);
    ASSERT_EQ(Int8::ValueOf(Int8::CodeOf(scaled)), std::clamp(integer, -128.0f, 127.0f)) << scaled;
    ASSERT_EQ(Int4::ValueOf(Int4::CodeOf(scaled)), std::clamp(integer, -8.0f, 7.0f)) << scaled;
  }
}

}  // namespace
}  // namespace quire::codec

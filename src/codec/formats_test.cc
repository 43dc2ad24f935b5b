#include "codec/formats.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <type_traits>

#include "codec/planes.h"
#include "quire/geometry.h"

namespace quire::codec {
namespace {

TEST(Formats, ANumberThatIsNoCodecHasNoFormat) {
  for (const int number : {0, static_cast<int>(kCodecs.back()) + 1, 255}) {
    const auto codec = static_cast<Codec>(number);
    EXPECT_EQ(InfoOf(codec).layout, CodeLayout::kNone);
    EXPECT_EQ(CodecName(codec), "unknown");
  }
}

TEST(Formats, EachNameIsThatOfOneCodec) {
  for (const Codec codec : kCodecs) EXPECT_EQ(ParseCodec(CodecName(codec)), codec);
  EXPECT_EQ(ParseCodec("unknown"), std::nullopt);
}

// The properties that vector code relies on, for every code of every format.
TEST(Formats, ValuesOfIntegerCodesAreTheirIntegers) {
  for (const Codec codec : kEncodingCodecs) {
    if (!HasIntegerCodes(codec)) continue;
    const uint32_t codes = InfoOf(codec).layout == CodeLayout::kByteTiles     ? 256
                           : InfoOf(codec).layout == CodeLayout::kNibbleTiles ? 16
                                                                              : 64;
    for (uint32_t i = 0; i < codes; ++i) {
      const auto code = static_cast<uint8_t>(i);
      const float divisor = WithFormat(codec, [](auto format) {
        if constexpr (IntegerFormat<decltype(format)>) return format.kDivisor;
        return 0.0f;
      });
      ASSERT_EQ(CodeValue(codec, code), static_cast<float>(IntegerOf(codec, code)) / divisor);
      ASSERT_LE(std::abs(IntegerOf(codec, code)), 128);
    }
  }
}

TEST(Formats, TypesAreFoundByNumber) {
  static_assert(std::is_same_v<FormatOf<Codec::kFp8E4m3>, Fp8E4m3>);
  static_assert(std::is_same_v<FormatOf<Codec::kQ25>, Q25>);
  EXPECT_TRUE(HasMids(Codec::kInt4));
  EXPECT_FALSE(HasMids(Codec::kNf4));
  EXPECT_FALSE(HasIntegerCodes(Codec::kFp8E5m2));
  EXPECT_FALSE(HasIntegerCodes(Codec::kF16));
}

}  // namespace
}  // namespace quire::codec

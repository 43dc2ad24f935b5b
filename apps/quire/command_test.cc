#include "apps/quire/command.h"

#include <gtest/gtest.h>

namespace quire::app {
namespace {

TEST(ParseBytes, TellsDecimalFromBinaryUnits) {
  EXPECT_EQ(ParseBytes("4000000000").value(), 4000000000u);
  EXPECT_EQ(ParseBytes("4GB").value(), 4000000000u);
  EXPECT_EQ(ParseBytes("4GiB").value(), 4294967296u);
  EXPECT_EQ(ParseBytes("512MiB").value(), uint64_t{512} << 20);
  EXPECT_EQ(ParseBytes("0").value(), 0u);
}

TEST(ParseBytes, RefusesWhatIsNotANumberOfBytes) {
  for (const char* text : {"", "GB", "-1", "4 GB", "4gb", "1.5GB", "99999999999999999999",
                           "18446744073709551615TiB"}) {
    const auto bytes = ParseBytes(text);
    ASSERT_FALSE(bytes) << text;
    EXPECT_NE(bytes.error().message.find(text), std::string::npos) << text;
  }
}

TEST(FormatBytes, UsesDecimalUnits) {
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1835008), "1.84 MB");
  EXPECT_EQ(FormatBytes(4'000'000'000), "4.00 GB");
}

TEST(ExitOf, SeparatesInputFromResources) {
  EXPECT_EQ(ExitOf(ErrorCode::kCorrupt), kBadInput);
  EXPECT_EQ(ExitOf(ErrorCode::kInvalidArgument), kBadInput);
  EXPECT_EQ(ExitOf(ErrorCode::kNoSpace), kResource);
}

}  // namespace
}  // namespace quire::app

#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

class LogTest : public testing::Test {
 protected:
  ~LogTest() override { SetLogLevel(LogLevel::kWarn); }
};

TEST_F(LogTest, NamesOfLevels) {
  EXPECT_EQ(ParseLogLevel("trace"), LogLevel::kTrace);
  EXPECT_EQ(ParseLogLevel("off"), LogLevel::kOff);
  EXPECT_EQ(ParseLogLevel("INFO"), std::nullopt);
  EXPECT_EQ(ParseLogLevel(""), std::nullopt);
}

TEST_F(LogTest, GoesToStderrOnly) {
  SetLogLevel(LogLevel::kInfo);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  LogInfo("slot {} of {{arena}}", 7);
  LogDebug("too fine {}", 1);
  LogWarn("braces {}", "{not a format}");
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(err.find("info slot 7 of {arena}\n"), std::string::npos) << err;
  EXPECT_NE(err.find("warning braces {not a format}\n"), std::string::npos) << err;
  EXPECT_EQ(err.find("too fine"), std::string::npos) << err;
}

TEST_F(LogTest, OffSilencesErrors) {
  SetLogLevel(LogLevel::kOff);
  EXPECT_FALSE(LogEnabled(LogLevel::kError));
  EXPECT_FALSE(LogEnabled(LogLevel::kOff));
  testing::internal::CaptureStderr();
  LogError("lost");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace quire

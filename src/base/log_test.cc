#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace quire {
namespace {

// The variable is read once in a process, so each level has a process of its own.
class LogDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

[[noreturn]] void LogAt(const char* level) {
  if (level != nullptr) {
    setenv("QUIRE_LOG", level, 1);
  } else {
    unsetenv("QUIRE_LOG");
  }
  std::fprintf(stderr, "begin\n");
  LogDebug("slot {} of {{arena}}", 7);
  LogWarn("braces {}", "{not a format}");
  std::fprintf(stderr, "end\n");
  std::exit(0);
}

constexpr const char* kDebugLine = " debug slot 7 of .arena.";
constexpr const char* kWarnLine = " warning braces .not a format.";

TEST_F(LogDeathTest, LinesBelowTheLevelAreDropped) {
  const auto exits = testing::ExitedWithCode(0);
  const auto only_warnings = testing::ContainsRegex(std::string("begin\n[^\n]*") + kWarnLine);
  EXPECT_EXIT(LogAt(nullptr), exits, only_warnings);
  EXPECT_EXIT(LogAt("warn"), exits, only_warnings);
  EXPECT_EXIT(LogAt("info"), exits, only_warnings);
  const auto both =
      testing::ContainsRegex(std::string("begin\n[^\n]*") + kDebugLine + "\n[^\n]*" + kWarnLine);
  EXPECT_EXIT(LogAt("debug"), exits, both);
  EXPECT_EXIT(LogAt("trace"), exits, both);
  EXPECT_EXIT(LogAt("error"), exits, "begin\nend");
  EXPECT_EXIT(LogAt("off"), exits, "begin\nend");
}

TEST_F(LogDeathTest, AnUnknownLevelIsNamedAndWarnings) {
  const auto exits = testing::ExitedWithCode(0);
  const auto named = testing::ContainsRegex(
      std::string("warning QUIRE_LOG=INFO: not one of trace debug info warn error off\n[^\n]*") +
      kWarnLine);
  EXPECT_EXIT(LogAt("INFO"), exits, named);
}

TEST(Log, GoesToStderrOnly) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  LogWarn("slot {}", 7);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(testing::internal::GetCapturedStderr().find(" warning slot 7\n"), std::string::npos);
}

}  // namespace
}  // namespace quire

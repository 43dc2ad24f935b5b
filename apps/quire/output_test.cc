#include "apps/quire/output.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "apps/quire/command.h"

namespace quire::app {
namespace {

template <typename Thrown>
int ExitOfThrown(const Thrown& thrown) {
  return RunToExit([&]() -> int { throw thrown; });
}

TEST(RunToExit, WhatIsThrownHasAnExitCode) {
  EXPECT_EQ(RunToExit([] { return kBadInput; }), kBadInput);
  EXPECT_EQ(RunToExit([] { return kOk; }), kOk);
  EXPECT_EQ(ExitOfThrown(std::bad_alloc()), kResource);
  EXPECT_EQ(ExitOfThrown(std::length_error("vector")), kResource);
  const auto system = [](std::errc code) {
    return ExitOfThrown(std::system_error(std::make_error_code(code)));
  };
  EXPECT_EQ(system(std::errc::resource_unavailable_try_again), kResource);  // a thread
  EXPECT_EQ(system(std::errc::no_space_on_device), kResource);
  EXPECT_EQ(system(std::errc::io_error), kFailedCheck);
  EXPECT_EQ(ExitOfThrown(std::filesystem::filesystem_error(
                "x", std::make_error_code(std::errc::permission_denied))),
            kFailedCheck);
  EXPECT_EQ(ExitOfThrown(std::logic_error("x")), kFailedCheck);
  EXPECT_EQ(ExitOfThrown(1), kFailedCheck);
}

TEST(PrepareProcessDeathTest, WhatAThreadThrowsEndsTheProgramTheSameWay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](auto thrown) {
    PrepareProcess();
    std::thread([&] { throw thrown; }).join();
  };
  EXPECT_EXIT(run(std::bad_alloc()), testing::ExitedWithCode(kResource), "no memory left");
  EXPECT_EXIT(run(std::logic_error("why")), testing::ExitedWithCode(kFailedCheck), "why");
}

}  // namespace
}  // namespace quire::app

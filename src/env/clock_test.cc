#include "env/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace quire {
namespace {

TEST(SystemClock, MovesForwardInMicroseconds) {
  const uint64_t before_us = SystemClock().NowMicros();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const uint64_t passed_us = SystemClock().NowMicros() - before_us;
  EXPECT_GE(passed_us, 5'000u);
  EXPECT_LT(passed_us, 60'000'000u) << "not microseconds";
}

TEST(ManualClock, MovesOnlyByHand) {
  ManualClock clock(7);
  EXPECT_EQ(clock.NowMicros(), 7u);
  clock.Advance(100);
  EXPECT_EQ(clock.NowMicros(), 107u);
}

}  // namespace
}  // namespace quire

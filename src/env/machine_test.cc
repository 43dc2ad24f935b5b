#include "env/machine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

namespace quire {
namespace {

TEST(Machine, AThreadStepsBackAlone) {
  const int before = getpriority(PRIO_PROCESS, 0);
  int stepped_back = 0;
  std::thread([&stepped_back] {
    StepBackBehindComputation();
    stepped_back = getpriority(PRIO_PROCESS, 0);
  }).join();
  EXPECT_EQ(stepped_back, std::max(before, 10));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

}  // namespace
}  // namespace quire

// Seeds of the simulator that every run of the tests repeats. `quire sim --what remote` runs more.
#include "sim/remote_sim.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace quire::sim {
namespace {

class RemoteSimTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
};

TEST_F(RemoteSimTest, NoSeedBreaksAPromise) {
  uint64_t faults = 0, crashes = 0, loaded = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const SimReport report = RunRemoteSim({.seed = seed, .steps = 1000});
    ASSERT_EQ(report.problems(), 0) << report.first_problem;
    faults += report.faults;
    crashes += report.crashes;
    loaded += report.loaded;
  }
  EXPECT_GT(faults, 800);
  EXPECT_GT(crashes, 100);
  EXPECT_GT(loaded, 3000);
}

}  // namespace
}  // namespace quire::sim

// Seeds of the engine's simulator that every run of the tests repeats. `quire sim` runs more.
#include "sim/engine_sim.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace quire::sim {
namespace {

class EngineSimTest : public testing::Test {
 protected:
  // Every fault warns, and there are thousands.
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
};

TEST_F(EngineSimTest, NoSeedBreaksAPromise) {
  uint64_t faults = 0, crashes = 0, answers = 0, loaded = 0, arrived = 0, scanned = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const SimReport report = RunEngineSim({.seed = seed, .steps = 600});
    ASSERT_EQ(report.problems(), 0) << report.first_problem;
    faults += report.faults;
    crashes += report.crashes;
    answers += report.answers;
    loaded += report.loaded;
    arrived += report.arrived;
    scanned += report.scanned;
  }
  // A simulator in which nothing happens finds nothing.
  EXPECT_GT(faults, 300);
  EXPECT_GT(crashes, 200);
  EXPECT_GT(answers, 4000);
  EXPECT_GT(loaded, 100);
  EXPECT_GT(arrived, 20);
  EXPECT_GT(scanned, 8);
}

TEST_F(EngineSimTest, ASeedGivesTheSameRunEveryTime) {
  for (uint64_t seed = 1000; seed < 1006; ++seed) {
    const SimReport first = RunEngineSim({.seed = seed, .steps = 300});
    const SimReport second = RunEngineSim({.seed = seed, .steps = 300});
    EXPECT_EQ(first.digest, second.digest) << seed;
    EXPECT_EQ(first.answers, second.answers);
    EXPECT_NE(first.digest, RunEngineSim({.seed = seed + 5000, .steps = 300}).digest);
  }
}

}  // namespace
}  // namespace quire::sim

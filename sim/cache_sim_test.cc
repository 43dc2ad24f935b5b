// Seeds of the caches' simulator that every run of the tests repeats. `quire sim` runs more.
#include "sim/cache_sim.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace quire::sim {
namespace {

class CacheSimTest : public testing::Test {
 protected:
  // Every fault warns, and there are thousands.
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
};

TEST_F(CacheSimTest, NoSeedBreaksAPromise) {
  uint64_t faults = 0, crashes = 0, loaded = 0, arrived = 0, streamed = 0, scanned = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const SimReport report = RunCacheSim({.seed = seed, .steps = 300});
    ASSERT_EQ(report.problems(), 0) << report.first_problem;
    faults += report.faults;
    crashes += report.crashes;
    loaded += report.loaded;
    arrived += report.arrived;
    streamed += report.streamed;
    scanned += report.scanned;
  }
  // A simulator in which nothing happens finds nothing.
  EXPECT_GT(faults, 1500);
  EXPECT_GT(crashes, 500);
  EXPECT_GT(loaded, 1000);
  EXPECT_GT(arrived, 2);
  EXPECT_GT(streamed, 20);
  EXPECT_GT(scanned, 300);
}

// Each of these found something once.
TEST_F(CacheSimTest, SeedsThatFoundSomething) {
  for (const uint64_t seed : {252, 712, 792, 797, 844, 3459, 3808}) {
    const SimReport report = RunCacheSim({.seed = seed, .steps = 2000});
    EXPECT_EQ(report.problems(), 0) << report.first_problem;
  }
}

TEST_F(CacheSimTest, ASeedGivesTheSameRunEveryTime) {
  for (uint64_t seed = 1000; seed < 1012; ++seed) {
    const SimReport first = RunCacheSim({.seed = seed, .steps = 300});
    const SimReport second = RunCacheSim({.seed = seed, .steps = 300});
    EXPECT_EQ(first.digest, second.digest) << seed;
    EXPECT_EQ(first.faults, second.faults);
    EXPECT_NE(first.digest, RunCacheSim({.seed = seed + 5000, .steps = 300}).digest);
  }
}

}  // namespace
}  // namespace quire::sim

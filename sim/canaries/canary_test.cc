// A simulator that finds nothing proves nothing: each planted bug must be found within 300 seeds,
// and without one none is.
#include "base/canary.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "sim/cold_sim.h"

namespace quire::sim {
namespace {

constexpr uint64_t kSeedsMax = 300;
constexpr uint64_t kSteps = 1000;

struct Planted {
  const char* name;
  Canary canary;
  uint64_t SimReport::* found_as;
};

class Canaries : public testing::TestWithParam<Planted> {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override {
    planted_canary = Canary::kNone;
    SetLogLevel(LogLevel::kWarn);
  }
};

TEST_P(Canaries, IsFound) {
  planted_canary = GetParam().canary;
  for (uint64_t seed = 1; seed <= kSeedsMax; ++seed) {
    const SimReport report = RunColdSim({.seed = seed, .steps = kSteps});
    if (report.problems() == 0) continue;
    EXPECT_GT(report.*GetParam().found_as, 0) << report.first_problem;
    RecordProperty("seeds", std::to_string(seed));
    return;
  }
  FAIL() << "not found in " << kSeedsMax << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    All, Canaries,
    testing::Values(Planted{"TrustCatalogue", Canary::kTrustCatalogue, &SimReport::wrong_bytes},
                    Planted{"ForgetSync", Canary::kForgetSync, &SimReport::lost_bytes},
                    Planted{"ReuseEarly", Canary::kReuseEarly, &SimReport::unexplained},
                    Planted{"IgnoreCap", Canary::kIgnoreCap, &SimReport::over_cap},
                    Planted{"LoseEpoch", Canary::kLoseEpoch, &SimReport::lost_bytes},
                    Planted{"SwapRecords", Canary::kSwapRecords, &SimReport::unexplained},
                    Planted{"SkipVerify", Canary::kSkipVerify, &SimReport::wrong_bytes}),
    [](const auto& planted) { return planted.param.name; });

TEST(CanariesOff, NothingIsFoundWithoutOne) {
  SetLogLevel(LogLevel::kOff);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const SimReport report = RunColdSim({.seed = seed, .steps = kSteps});
    EXPECT_EQ(report.problems(), 0) << report.first_problem;
  }
  SetLogLevel(LogLevel::kWarn);
}

}  // namespace
}  // namespace quire::sim

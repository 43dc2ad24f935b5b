// A simulator that finds nothing proves nothing: each planted bug must be found within 300 seeds,
// and without one none is.
#include "base/canary.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>

#include "base/log.h"
#include "sim/cache_sim.h"
#include "sim/cold_sim.h"
#include "sim/engine_sim.h"
#include "sim/remote_sim.h"

namespace quire::sim {
namespace {

constexpr uint64_t kSeedsMax = 300;

using Simulator = SimReport (*)(const SimOptions&);

struct Planted {
  const char* name;
  Canary canary;
  uint64_t SimReport::* found_as;  // null: any problem, or a check that stops the program
  Simulator run = RunColdSim;
  uint64_t steps = 1000;
  uint64_t stride = 1;  // from seed to seed
};

struct Finding {
  uint64_t seed = 0;  // 0: none found anything
  bool as_expected = false;
  std::array<char, 200> what{};
};

Finding Search(const Planted& planted) {
  planted_canary = planted.canary;
  for (uint64_t i = 0; i < kSeedsMax; ++i) {
    const uint64_t seed = 1 + i * planted.stride;
    const SimReport report = planted.run({.seed = seed, .steps = planted.steps});
    if (report.problems() == 0) continue;
    Finding finding = {.seed = seed};
    finding.as_expected = planted.found_as == nullptr || report.*planted.found_as > 0;
    report.first_problem.copy(finding.what.data(), finding.what.size() - 1);
    return finding;
  }
  return {};
}

/// The same in a process of its own. Empty: a check stopped it.
std::optional<Finding> SearchApart(const Planted& planted) {
  std::array<int, 2> pipe_ends{};
  if (::pipe(pipe_ends.data()) != 0) return Finding();
  const pid_t child = ::fork();
  if (child == 0) {
    // The message of the stopped program is not part of this test's output.
    if (planted.found_as == nullptr) std::fclose(stderr);
    const Finding finding = Search(planted);
    const auto written = ::write(pipe_ends[1], &finding, sizeof(finding));
    ::_exit(written == sizeof(finding) ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  Finding finding;
  const bool told = ::read(pipe_ends[0], &finding, sizeof(finding)) == sizeof(finding);
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!told) return std::nullopt;
  return finding;
}

class Canaries : public testing::TestWithParam<Planted> {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
};

TEST_P(Canaries, IsFound) {
  const std::optional<Finding> finding = SearchApart(GetParam());
  if (!finding) {
    EXPECT_EQ(GetParam().found_as, nullptr) << "a check stopped it";
    return;
  }
  ASSERT_GT(finding->seed, 0) << "not found in " << kSeedsMax << " seeds";
  EXPECT_TRUE(finding->as_expected) << finding->what.data();
  RecordProperty("seeds", std::to_string(finding->seed));
}

constexpr uint64_t kCacheSteps = 300;
constexpr uint64_t kLongSteps = 1000;  // for bugs that need several events at once
// Of these seeds the first that finds a segment too many sees it over the cap. In most others the
// room that is kept for the catalogue hides it, and it is missing when the store is opened again.
constexpr uint64_t kOverCap = 24;
constexpr uint64_t kOnDevice = 11;  // seeds whose caches are on a device, with a warm tier

INSTANTIATE_TEST_SUITE_P(
    Store, Canaries,
    testing::Values(Planted{"TrustCatalogue", Canary::kTrustCatalogue, &SimReport::wrong_bytes},
                    Planted{"ForgetSync", Canary::kForgetSync, &SimReport::lost_bytes},
                    Planted{"ReuseEarly", Canary::kReuseEarly, &SimReport::unexplained},
                    Planted{"IgnoreCap", Canary::kIgnoreCap, &SimReport::over_cap, RunColdSim,
                            kLongSteps, kOverCap},
                    Planted{"LoseEpoch", Canary::kLoseEpoch, &SimReport::lost_bytes},
                    Planted{"SwapRecords", Canary::kSwapRecords, &SimReport::unexplained},
                    Planted{"SkipVerify", Canary::kSkipVerify, &SimReport::wrong_bytes},
                    Planted{"TellPresent", Canary::kTellPresent, &SimReport::lost_bytes},
                    Planted{"KeepLeftovers", Canary::kKeepLeftovers, &SimReport::wrong_bytes},
                    Planted{"GoodCopyFirst", Canary::kGoodCopyFirst, &SimReport::lost_bytes}),
    [](const auto& planted) { return planted.param.name; });

INSTANTIATE_TEST_SUITE_P(Remote, Canaries,
                         testing::Values(Planted{"TrustSealed", Canary::kTrustSealed,
                                                 &SimReport::wrong_bytes, RunRemoteSim},
                                         Planted{"TrustOldEpochs", Canary::kTrustOldEpochs,
                                                 &SimReport::wrong_bytes, RunRemoteSim},
                                         Planted{"ConfirmEarly", Canary::kConfirmEarly,
                                                 &SimReport::wrong_bytes, RunRemoteSim}),
                         [](const auto& planted) { return planted.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Caches, Canaries,
    testing::Values(
        Planted{"SkipVerify", Canary::kSkipVerify, &SimReport::wrong_bytes, RunCacheSim,
                kCacheSteps},
        Planted{"AttachEarly", Canary::kAttachEarly, nullptr, RunCacheSim, kCacheSteps},
        Planted{"TrustFailed", Canary::kTrustFailed, nullptr, RunCacheSim, kCacheSteps},
        Planted{"ForgetLate", Canary::kForgetLate, nullptr, RunCacheSim, kCacheSteps},
        Planted{"MistakeBlock", Canary::kMistakeBlock, &SimReport::lost_bytes, RunCacheSim,
                kCacheSteps},
        Planted{"ReleaseTwice", Canary::kReleaseTwice, nullptr, RunCacheSim, kCacheSteps},
        Planted{"LeakSlots", Canary::kLeakSlots, &SimReport::leaked, RunCacheSim, kCacheSteps},
        Planted{"TrustChildren", Canary::kTrustChildren, &SimReport::unexplained, RunCacheSim,
                kCacheSteps},
        Planted{"EraseAbove", Canary::kEraseAbove, &SimReport::wrong_bytes, RunCacheSim,
                kCacheSteps},
        Planted{"FlushEarly", Canary::kFlushEarly, &SimReport::lost_bytes, RunCacheSim,
                kCacheSteps},
        Planted{"TrustArrived", Canary::kTrustArrived, &SimReport::wrong_bytes, RunCacheSim,
                kCacheSteps},
        Planted{"ForgetLoan", Canary::kForgetLoan, nullptr, RunCacheSim, kLongSteps, kOnDevice},
        Planted{"KeepLoaded", Canary::kKeepLoaded, &SimReport::wrong_bytes, RunCacheSim,
                kLongSteps},
        Planted{"KeepFree", Canary::kKeepFree, &SimReport::wrong_bytes, RunCacheSim, kCacheSteps},
        Planted{"TrustWarm", Canary::kTrustWarm, &SimReport::lost_bytes, RunCacheSim, kLongSteps,
                kOnDevice},
        Planted{"AcceptDemoted", Canary::kAcceptDemoted, &SimReport::wrong_bytes, RunCacheSim,
                kCacheSteps},
        Planted{"KeepApproximate", Canary::kKeepApproximate, nullptr, RunCacheSim, kCacheSteps},
        Planted{"CutEarly", Canary::kCutEarly, nullptr, RunCacheSim, kCacheSteps}),
    [](const auto& planted) { return planted.param.name; });

constexpr uint64_t kEngineSteps = 500;

INSTANTIATE_TEST_SUITE_P(
    Engine, Canaries,
    testing::Values(Planted{"ForgetWaiters", Canary::kForgetWaiters, &SimReport::stuck,
                            RunEngineSim, kEngineSteps},
                    Planted{"ForgetSampler", Canary::kForgetSampler, &SimReport::wrong_bytes,
                            RunEngineSim, kEngineSteps},
                    Planted{"StopForReader", Canary::kStopForReader, &SimReport::stuck,
                            RunEngineSim, kEngineSteps},
                    Planted{"AnswerEarly", Canary::kAnswerEarly, &SimReport::lost_bytes,
                            RunEngineSim, kEngineSteps},
                    Planted{"KeepFree", Canary::kKeepFree, &SimReport::wrong_bytes, RunEngineSim,
                            kEngineSteps},
                    Planted{"KeepText", Canary::kKeepText, &SimReport::wrong_bytes, RunEngineSim,
                            kEngineSteps}),
    [](const auto& planted) { return planted.param.name; });

TEST(CanariesOff, NothingIsFoundWithoutOne) {
  SetLogLevel(LogLevel::kOff);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const SimReport store = RunColdSim({.seed = seed, .steps = 1000});
    EXPECT_EQ(store.problems(), 0) << store.first_problem;
    const SimReport caches = RunCacheSim({.seed = seed, .steps = kCacheSteps});
    EXPECT_EQ(caches.problems(), 0) << caches.first_problem;
    const SimReport engine = RunEngineSim({.seed = seed, .steps = kEngineSteps});
    EXPECT_EQ(engine.problems(), 0) << engine.first_problem;
    const SimReport remote = RunRemoteSim({.seed = seed, .steps = 1000});
    EXPECT_EQ(remote.problems(), 0) << remote.first_problem;
  }
  SetLogLevel(LogLevel::kWarn);
}

}  // namespace
}  // namespace quire::sim

#include "bench/pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/quiet.h"

namespace quire::bench {
namespace {

TEST(Median, IsTheMiddleOrBetweenTheTwo) {
  EXPECT_EQ(Median({5}), 5);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 6}), 5.5);
}

// Gives, for every place, the next of its seconds at each call, and records the order of calls.
class Figures {
 public:
  Figures(std::string name, std::map<uint32_t, std::vector<double>> seconds, std::string& calls)
      : name_(std::move(name)), seconds_(std::move(seconds)), calls_(calls) {}
  double operator()(uint32_t place) {
    calls_ += name_ + std::to_string(place);
    return seconds_.at(place).at(next_[place]++);
  }

 private:
  std::string name_;
  std::map<uint32_t, std::vector<double>> seconds_;
  std::string& calls_;
  std::map<uint32_t, size_t> next_;
};

TEST(Contest, AddsTheBestOfEveryPlace) {
  std::string calls;
  Contest contest;
  ASSERT_TRUE(contest.Run(2, 2, Figures("a", {{0, {4, 2}}, {1, {8, 9}}}, calls),
                          Figures("b", {{0, {1, 7}}, {1, {2, 2}}}, calls)));
  EXPECT_EQ(contest.turns().first_s, 2 + 8);
  EXPECT_EQ(contest.turns().second_s, 1 + 2);
  // 1/4, 2/8, 7/2, 2/9
  EXPECT_DOUBLE_EQ(contest.turns().median, 0.25);
  EXPECT_EQ(contest.turns().pairs, 4u);
}

TEST(Contest, RemembersTheBestOfEarlierRuns) {
  Contest contest;
  const auto take = [](double seconds) { return [=](uint32_t) { return seconds; }; };
  ASSERT_TRUE(contest.Run(1, 1, take(2), take(9)));
  ASSERT_TRUE(contest.Run(1, 1, take(5), take(4)));
  EXPECT_EQ(contest.turns().first_s, 2);
  EXPECT_EQ(contest.turns().second_s, 4);
  EXPECT_EQ(contest.turns().pairs, 2u);
}

TEST(Contest, NeitherAlwaysFollowsTheOther) {
  std::string calls;
  Contest contest;
  ASSERT_TRUE(contest.Run(3, 1, Figures("a", {{0, {1, 1, 1}}}, calls),
                          Figures("b", {{0, {1, 1, 1}}}, calls)));
  EXPECT_EQ(calls, "a0b0b0a0a0b0");
}

TEST(Contest, OneDisturbedSliceChangesNothing) {
  std::string calls;
  Contest quiet, busy;
  ASSERT_TRUE(quiet.Run(4, 1, Figures("a", {{0, {2, 2, 2, 2}}}, calls),
                        Figures("b", {{0, {1, 1, 1, 1}}}, calls)));
  ASSERT_TRUE(busy.Run(4, 1, Figures("a", {{0, {2, 99, 2, 2}}}, calls),
                       Figures("b", {{0, {50, 1, 1, 1}}}, calls)));
  EXPECT_EQ(quiet.turns().first_s, busy.turns().first_s);
  EXPECT_EQ(quiet.turns().second_s, busy.turns().second_s);
}

TEST(Contest, AFailureEndsTheRun) {
  Contest contest;
  const auto done = contest.Run(
      3, 1, [](uint32_t) { return 1.0; },
      [](uint32_t) -> Result<double> { return Fail(ErrorCode::kIo, "the worker ended"); });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().message, "the worker ended");
}

TEST(InPasses, VisitsAllCasesBeforeItComesBack) {
  std::string calls;
  std::vector<Contest> contests(2);
  const auto run = [&](size_t i, uint32_t rounds, Contest& contest) {
    calls += std::to_string(i) + "*" + std::to_string(rounds) + " ";
    return contest.Run(rounds, 1, [](uint32_t) { return 1.0; }, [](uint32_t) { return 2.0; });
  };
  ASSERT_TRUE(InPasses(10, contests, run));
  EXPECT_EQ(calls, "0*5 1*5 0*5 1*5 ");
}

TEST(InPasses, GoesOnWithWhatFindsBetterOnes) {
  std::vector<Contest> contests(2);
  std::vector<int> runs(2);
  const auto run = [&](size_t i, uint32_t, Contest& contest) {
    // Case 1 gets faster until its seventh run.
    const double seconds = i == 0 ? 1 : 100 - 10 * std::min(++runs[1], 7);
    if (i == 0) ++runs[0];
    return contest.Run(1, 1, [=](uint32_t) { return seconds; }, [](uint32_t) { return 1.0; });
  };
  ASSERT_TRUE(InPasses(20, contests, run));
  EXPECT_EQ(runs[0], 4);
  // Of 13 runs the last six found nothing better than the first seven.
  EXPECT_EQ(runs[1], 13);
  EXPECT_EQ(contests[1].turns().first_s, 30);
}

TEST(InPasses, GivesUpAtLast) {
  std::vector<Contest> contests(1);
  double seconds = 1;
  const auto run = [&](size_t, uint32_t rounds, Contest& contest) {
    return contest.Run(
        rounds, 2, [](uint32_t) { return 1.0; }, [&](uint32_t) { return seconds /= 2; });
  };
  ASSERT_TRUE(InPasses(10, contests, run));
  EXPECT_EQ(contests[0].turns().pairs, 2 * 10 * kRunsFactorMax);
}

TEST(InPasses, WhatHasEndedIsLeftAlone) {
  std::vector<Contest> contests(1);
  int runs = 0;
  const auto run = [&](size_t, uint32_t, Contest& contest) -> Result<void> {
    ++runs;
    contest.End();
    return {};
  };
  ASSERT_TRUE(InPasses(100, contests, run));
  EXPECT_EQ(runs, 1);
}

Case TimedCase(bool less_is_better) {
  return {.name = "case/t1", .prepare = [=]() -> Result<Subject> {
            return Timed{.unit = less_is_better ? "ms" : "GB/s",
                         .less_is_better = less_is_better,
                         .amount = 10,
                         .places = 2,
                         .slice = "a slice",
                         .work = [](uint32_t place) { return place == 0 ? 3.0 : 2.0; },
                         .floor = [](uint32_t) { return 2.0; },
                         .note = [] { return std::string("after"); }};
          }};
}

Result<Row> MeasureOne(const Case& which) {
  QUIRE_ASSIGN(auto rows, Measure({&which, 1}, 1, [](const std::string&) {}));
  return std::move(rows.at(0));
}

TEST(Measure, OfRatesTheFigureIsTheAmountOverTheSeconds) {
  const auto row = MeasureOne(TimedCase(/*less_is_better=*/false));
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->name, "case/t1");
  EXPECT_EQ(row->value, 2);
  EXPECT_EQ(row->floor, 2.5);
  EXPECT_DOUBLE_EQ(row->ratio, 0.8);
  EXPECT_DOUBLE_EQ(row->ratio, row->value / row->floor);
  EXPECT_EQ(row->pairs, 2u);
  EXPECT_EQ(row->slice, "a slice");
  EXPECT_EQ(row->note, "after");
}

TEST(Measure, OfTimesTheRatioIsTheOtherWayRound) {
  const auto row = MeasureOne(TimedCase(/*less_is_better=*/true));
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->value, 50);
  EXPECT_EQ(row->floor, 40);
  EXPECT_DOUBLE_EQ(row->ratio, 0.8);
  EXPECT_DOUBLE_EQ(row->ratio, row->floor / row->value);
}

TEST(Measure, AFigureWithoutAClockIsTakenAsItIs) {
  const Case bytes = {.name = "bytes", .prepare = []() -> Result<Subject> {
                        return Exact{
                            .unit = "bytes", .less_is_better = true, .value = 80, .floor = 20};
                      }};
  const auto row = MeasureOne(bytes);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->ratio, 0.25);
  EXPECT_EQ(row->pairs, 0u);
}

TEST(SecondsOf, WaitsForAllThreads) {
  for (const uint32_t threads : {1u, 2u, 3u}) {
    const auto executor = MakePinnedPool(threads);
    int runs = 0;
    const double seconds = SecondsOf(*executor, [&] { ++runs; });
    EXPECT_EQ(runs, 1);
    EXPECT_GE(seconds, 0);
    EXPECT_LT(seconds, 60);
  }
}

}  // namespace
}  // namespace quire::bench

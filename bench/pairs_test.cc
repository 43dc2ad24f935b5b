#include "bench/pairs.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace quire::bench {
namespace {

TEST(Median, IsTheMiddleOrBetweenTheTwo) {
  EXPECT_EQ(Median({5}), 5);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 6}), 5.5);
}

// Gives, for every place, the next of its seconds at each call, and writes down who was called.
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

TEST(TakeTurns, AddsTheBestOfEveryPlace) {
  std::string calls;
  const auto turns = TakeTurns(2, 2, Figures("a", {{0, {4, 2}}, {1, {8, 9}}}, calls),
                               Figures("b", {{0, {1, 7}}, {1, {2, 2}}}, calls));
  ASSERT_TRUE(turns.has_value());
  EXPECT_EQ(turns->first_s, 2 + 8);
  EXPECT_EQ(turns->second_s, 1 + 2);
  // 1/4, 2/8, 7/2, 2/9
  EXPECT_DOUBLE_EQ(turns->median, 0.25);
  EXPECT_EQ(turns->pairs, 4u);
}

TEST(TakeTurns, NeitherAlwaysFollowsTheOther) {
  std::string calls;
  const Slice first = Figures("a", {{0, {1, 1, 1}}}, calls);
  const Slice second = Figures("b", {{0, {1, 1, 1}}}, calls);
  ASSERT_TRUE(TakeTurns(3, 1, first, second).has_value());
  EXPECT_EQ(calls, "a0b0b0a0a0b0");
}

TEST(TakeTurns, OneDisturbedSliceChangesNothing) {
  std::string calls;
  const auto quiet = TakeTurns(4, 1, Figures("a", {{0, {2, 2, 2, 2}}}, calls),
                               Figures("b", {{0, {1, 1, 1, 1}}}, calls));
  const auto busy = TakeTurns(4, 1, Figures("a", {{0, {2, 99, 2, 2}}}, calls),
                              Figures("b", {{0, {50, 1, 1, 1}}}, calls));
  ASSERT_TRUE(quiet.has_value() && busy.has_value());
  EXPECT_EQ(quiet->second_s / quiet->first_s, busy->second_s / busy->first_s);
}

TEST(TakeTurns, GoesOnWhileItFindsBetterOnes) {
  int calls = 0;
  const Slice better_and_better = [&](uint32_t) { return 100.0 - 10 * std::min(++calls, 7); };
  const auto turns = TakeTurns(4, 1, better_and_better, [](uint32_t) { return 1.0; });
  ASSERT_TRUE(turns.has_value());
  EXPECT_EQ(turns->first_s, 30);
  // Of 12 rounds the last 5 found nothing better than the first 7.
  EXPECT_EQ(turns->pairs, 12u);
}

TEST(TakeTurns, GivesUpAtLast) {
  double seconds = 1e9;
  const Slice always_better = [&](uint32_t) { return seconds /= 2; };
  const auto turns = TakeTurns(3, 2, [](uint32_t) { return 1.0; }, always_better);
  ASSERT_TRUE(turns.has_value());
  EXPECT_EQ(turns->pairs, 2 * 3 * kRoundsFactorMax);
}

TEST(TakeTurns, AFailureEndsIt) {
  const auto turns = TakeTurns(
      3, 1, [](uint32_t) { return 1.0; },
      [](uint32_t) -> Result<double> { return Fail(ErrorCode::kIo, "the worker ended"); });
  ASSERT_FALSE(turns.has_value());
  EXPECT_EQ(turns.error().message, "the worker ended");
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

TEST(Measure, OfRatesTheFigureIsTheAmountOverTheSeconds) {
  const auto row = Measure(TimedCase(/*less_is_better=*/false), 1);
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
  const auto row = Measure(TimedCase(/*less_is_better=*/true), 1);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->value, 50);
  EXPECT_EQ(row->floor, 40);
  EXPECT_DOUBLE_EQ(row->ratio, 0.8);
  EXPECT_DOUBLE_EQ(row->ratio, row->floor / row->value);
}

TEST(Measure, WhatNeedsNoClockIsTakenAsItIs) {
  const Case bytes = {.name = "bytes", .prepare = []() -> Result<Subject> {
                        return Exact{
                            .unit = "bytes", .less_is_better = true, .value = 80, .floor = 20};
                      }};
  const auto row = Measure(bytes, 5);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->ratio, 0.25);
  EXPECT_EQ(row->pairs, 0u);
}

TEST(SecondsOf, WaitsForAllThreads) {
  for (const uint32_t threads : {1u, 2u, 3u}) {
    const auto executor = MakeThreadPool(threads);
    int runs = 0;
    const double seconds = SecondsOf(*executor, [&] { ++runs; });
    EXPECT_EQ(runs, 1);
    EXPECT_GE(seconds, 0);
    EXPECT_LT(seconds, 60);
  }
}

}  // namespace
}  // namespace quire::bench

#include "bench/pairs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::bench {
namespace {

TEST(Median, IsTheMiddleOrBetweenTheTwo) {
  EXPECT_EQ(Median({5}), 5);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 6}), 5.5);
}

// Gives the next of a list at each call.
class Figures {
 public:
  Figures(std::string name, std::vector<double> figures, std::string& calls)
      : name_(std::move(name)), figures_(std::move(figures)), calls_(calls) {}
  double operator()() {
    calls_ += name_;
    return figures_[next_++];
  }

 private:
  std::string name_;
  std::vector<double> figures_;
  std::string& calls_;
  size_t next_ = 0;
};

TEST(MeasurePairs, TakesTurnsAndReportsTheMedianOfTheRatios) {
  std::string calls;
  std::string shown;
  const Options options = {.pairs = 3, .progress = [&](const std::string& line) { shown = line; }};
  const Row row = MeasurePairs(options, {.name = "case/t1",
                                         .unit = "GB/s",
                                         .work = Figures("w", {50, 60, 99}, calls),
                                         .floor = Figures("f", {100, 102, 98}, calls)});
  EXPECT_EQ(calls, "wfwfwf");
  EXPECT_EQ(shown, "case/t1");
  EXPECT_EQ(row.name, "case/t1");
  EXPECT_EQ(row.unit, "GB/s");
  EXPECT_EQ(row.value, 60);
  EXPECT_EQ(row.floor, 100);
  EXPECT_DOUBLE_EQ(row.ratio, 60.0 / 102);
  EXPECT_EQ(row.note, "");
}

TEST(MeasurePairs, OfTimesTheRatioIsTheOtherWayRound) {
  std::string calls;
  const Row row = MeasurePairs({.pairs = 1, .progress = {}}, {.name = "a",
                                                              .unit = "ns",
                                                              .less_is_better = true,
                                                              .work = Figures("w", {50}, calls),
                                                              .floor = Figures("f", {40}, calls)});
  EXPECT_DOUBLE_EQ(row.ratio, 0.8);
}

TEST(MeasurePairs, AnUnsteadyFloorVoidsTheRow) {
  std::string calls;
  const Row row =
      MeasurePairs({.pairs = 3, .progress = {}}, {.name = "a",
                                                  .unit = "GB/s",
                                                  .work = Figures("w", {1, 1, 1}, calls),
                                                  .floor = Figures("f", {95, 100, 110}, calls)});
  EXPECT_EQ(row.note, "void: floor spread 15 %");
}

}  // namespace
}  // namespace quire::bench

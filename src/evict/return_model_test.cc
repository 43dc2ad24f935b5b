#include "evict/return_model.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::evict {
namespace {

ReturnFeatures Kind(bool returns) { return {1, returns ? 1.0F : -1.0F}; }

TEST(ReturnModel, AgesAreQuartersOfDoublings) {
  EXPECT_EQ(ReturnModel::AgeOf(0), 0u);
  for (uint32_t age = 9; age + 1 < ReturnModel::kAges; ++age) {
    const double begin_ms = ReturnModel::AgeBegin_ms(age);
    EXPECT_GT(ReturnModel::AgeBegin_ms(age + 1), begin_ms);
    EXPECT_EQ(ReturnModel::AgeOf(static_cast<uint64_t>(begin_ms)), age);
    EXPECT_EQ(ReturnModel::AgeOf(static_cast<uint64_t>(begin_ms) - 1), age - 1);
  }
  EXPECT_EQ(ReturnModel::AgeOf(UINT64_MAX), ReturnModel::kAges - 1);
}

TEST(ReturnModel, LearnsWhoReturns) {
  ReturnModel model;
  EXPECT_EQ(model.Score(Kind(true)), model.Score(Kind(false)));
  for (int i = 0; i < 500; ++i) {
    model.Learn(Kind(true), true);
    model.Learn(Kind(false), false);
  }
  EXPECT_GT(model.Score(Kind(true)), 0.5);
  EXPECT_LT(model.Score(Kind(false)), -0.5);
}

TEST(ReturnModel, ScoresFallIntoClassesOfEqualSize) {
  ReturnModel model;
  std::vector<double> scores;
  for (int i = 0; i < 800; ++i) scores.push_back((i * 37 % 800) / 100.0);
  model.Refit(scores, {});
  std::array<int, ReturnModel::kClasses> sizes = {};
  for (int i = 0; i < 800; ++i) ++sizes[model.ClassOf(i / 100.0)];
  for (const int size : sizes) EXPECT_NEAR(size, 100, 1);
}

TEST(ReturnModel, TooFewScoresChangeNothing) {
  ReturnModel model;
  std::vector<double> scores(3, 0.5);
  model.CountReturn(0, 1000);
  model.Refit(scores, {});
  EXPECT_EQ(model.Worth(0, 0), 0.0);
}

// Of class 0 everything returns after a minute, of class 7 nothing in a day.
TEST(ReturnModel, WorthIsTheBestRateOfHitsToCome) {
  ReturnModel model;
  constexpr uint64_t kMinute_ms = 60'000;
  for (int i = 0; i < 400; ++i) {
    model.CountReturn(0, kMinute_ms);
    model.CountLost(7, 24 * 60 * kMinute_ms);
  }
  std::vector<double> scores;
  for (int i = 0; i < 100; ++i) scores.push_back(i);
  model.Refit(scores, {});
  EXPECT_GT(model.Worth(0, 0), 10 * model.Worth(7, 0));
  EXPECT_GT(model.Worth(0, kMinute_ms / 2), model.Worth(0, 0)) << "closer to its return";
  EXPECT_LT(model.Worth(0, 10 * kMinute_ms), model.Worth(0, kMinute_ms)) << "it is overdue";
  EXPECT_GT(model.horizon_ms(), kMinute_ms / 2.0);
  EXPECT_LT(model.horizon_ms(), kMinute_ms * 3.0);
}

TEST(ReturnModel, WithoutEvidenceWorthFallsWithAge) {
  ReturnModel model;
  for (int i = 0; i < 100; ++i) model.CountReturn(3, 1000);
  std::vector<double> scores(100, 0);
  model.Refit(scores, {});
  uint64_t age_ms = 3'600'000;
  for (int i = 0; i < 6; ++i, age_ms *= 4) {
    EXPECT_GT(model.Worth(3, age_ms), model.Worth(3, age_ms * 4));
  }
}

}  // namespace
}  // namespace quire::evict

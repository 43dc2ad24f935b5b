#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "evict/return_model.h"

namespace quire::evict {
namespace {

ReturnFeatures Kind(bool returns) { return {1, returns ? 1.0F : -1.0F}; }

TEST(ReturnModel, AgesAreQuartersOfDoublings) {
  EXPECT_EQ(ReturnModel::AgeOf(0), 0u);
  for (uint32_t age = 9; age + 1 < ReturnModel::kAges; ++age) {
    const double begin_ms = ReturnModel::AgeBeginMs(age);
    EXPECT_GT(ReturnModel::AgeBeginMs(age + 1), begin_ms);
    EXPECT_EQ(ReturnModel::AgeOf(static_cast<uint64_t>(begin_ms)), age);
    EXPECT_EQ(ReturnModel::AgeOf(static_cast<uint64_t>(begin_ms) - 1), age - 1);
  }
  EXPECT_EQ(ReturnModel::AgeOf(UINT64_MAX), ReturnModel::kAges - 1);
}

TEST(ReturnModel, LearnsWhichBlocksReturn) {
  ReturnModel model;
  EXPECT_EQ(model.Score(Kind(true)), model.Score(Kind(false)));
  for (int i = 0; i < 500; ++i) {
    model.Learn(Kind(true), true);
    model.Learn(Kind(false), false);
  }
  EXPECT_GT(model.Score(Kind(true)), 0.5);
  EXPECT_LT(model.Score(Kind(false)), -0.5);
}

// Worked out by hand: from a weight of -1 the chance is 1 / (1 + e), so the error is 0.731059; its
// square, 0.534447, is all that the sum of squares holds, and a step of 0.1 times the error goes
// over the root of that and 0.001, 0.731742: 0.0999067 for either weight.
TEST(ReturnModel, AStepIsWhatCanBeWorkedOutByHand) {
  ReturnModel model;
  EXPECT_EQ(model.Score({1}), -1.0);
  model.Learn({1, 1}, true);
  EXPECT_NEAR(model.Score({1}), -0.9000933, 1e-6);
  EXPECT_NEAR(model.Score({1, 1}), -0.8001866, 1e-6);
  EXPECT_NEAR(model.Score({1, -1}), -1.0, 1e-9);
}

// A block that returns with the same chance at every age is worth that chance, however old.
TEST(ReturnModel, AConstantChanceIsItsOwnWorth) {
  ReturnModel::Ages hazard;
  hazard.fill(0.003);
  for (const double worth : ReturnModel::GittinsIndex(hazard)) EXPECT_NEAR(worth, 0.003, 1e-12);
}

// A chance at one age only: before it the best stay goes on to its end. With age k in [b, e) and
// begun at a: (1 - exp(-h (e - b))) hits for (b - a) + (1 - exp(-h (e - b))) / h milliseconds.
TEST(ReturnModel, AChanceToComeIsWorthMoreTheCloserItIs) {
  constexpr uint32_t kAge = 40;
  constexpr double kHazard = 0.0001;
  ReturnModel::Ages hazard;
  hazard.fill(1e-30);
  hazard[kAge] = kHazard;
  const auto index = ReturnModel::GittinsIndex(hazard);
  const double begin = ReturnModel::AgeBeginMs(kAge);
  const double hits = 1 - std::exp(-kHazard * (ReturnModel::AgeBeginMs(kAge + 1) - begin));
  for (uint32_t age = 0; age <= kAge; ++age) {
    const double wait = begin - ReturnModel::AgeBeginMs(age);
    EXPECT_NEAR(index[age], hits / (wait + hits / kHazard), 1e-12) << "age " << age;
  }
  for (uint32_t age = kAge + 1; age < ReturnModel::kAges; ++age) EXPECT_LT(index[age], 1e-25);
}

// All stretches tried, one after the other.
TEST(ReturnModel, WorthEqualsASearchForTheBestStretch) {
  Prng prng(12);
  for (int round = 0; round < 20; ++round) {
    ReturnModel::Ages hazard;
    for (double& chance : hazard) chance = std::exp(-18 + 12 * prng.NextDouble());
    const auto index = ReturnModel::GittinsIndex(hazard);
    for (uint32_t begin = 0; begin < ReturnModel::kAges; ++begin) {
      double best = 0;
      double hits = 0;
      double time_ms = 0;
      double alive = 1;
      for (uint32_t age = begin; age < ReturnModel::kAges; ++age) {
        const double width = ReturnModel::AgeBeginMs(age + 1) - ReturnModel::AgeBeginMs(age);
        const double returns = -std::expm1(-hazard[age] * width);
        hits += alive * returns;
        time_ms += alive * returns / hazard[age];
        alive *= 1 - returns;
        best = std::max(best, hits / time_ms);
      }
      ASSERT_NEAR(index[begin] / best, 1, 1e-9) << "round " << round << ", age " << begin;
    }
  }
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

TEST(LeastWorth, TakesTheOldestOrNewestLeafOfAClass) {
  ReturnModel model;
  LeafOrder order(ReturnModel::kClasses);
  LeastWorth least_worth;
  EXPECT_TRUE(least_worth.Find(order, model, 100).is_none());
  for (int i = 0; i < 400; ++i) model.CountReturn(0, 60'000);
  for (int i = 0; i < 400; ++i) model.CountLost(7, 86'400'000);
  std::vector<double> scores(100, 0);
  model.Refit(scores, {});
  order.Add(BlockId(1), BlockId::None(), {.queue = 0, .weight = 0, .stamp = 1});
  order.Add(BlockId(2), BlockId::None(), {.queue = 7, .weight = 59'000, .stamp = 2});
  EXPECT_EQ(least_worth.Find(order, model, 60'000), BlockId(2)) << "newer, and never returns";
  order.Remove(BlockId(2));
  EXPECT_EQ(least_worth.Find(order, model, 60'000), BlockId(1));
}

// Paths without branches under a model that changes: remembered candidates are never stale.
TEST(LeastWorth, EqualsASearchThroughAllClasses) {
  Prng prng(5);
  ReturnModel model;
  LeafOrder order(ReturnModel::kClasses);
  LeastWorth least_worth;
  std::vector<bool> present(64);
  uint64_t now_ms = 0;
  uint64_t by_worth = 0;
  for (uint64_t stamp = 1; stamp < 20'000; ++stamp) {
    if (prng.NextChance(4)) now_ms += prng.NextBelow(5000);
    if (prng.NextChance(50)) {
      const auto of_class = static_cast<uint32_t>(prng.NextBelow(ReturnModel::kClasses));
      for (int i = 0; i < 50; ++i) model.CountReturn(of_class, prng.NextBelow(20'000));
      std::vector<double> scores(100, 0);
      model.Refit(scores, {});
    }
    // A block goes, from wherever it stands, or comes behind the one before it.
    const auto number = static_cast<uint32_t>(prng.NextBelow(present.size()));
    const BlockId parent = number % 4 == 0 ? BlockId::None() : BlockId(number - 1);
    if (present[number]) {
      order.Remove(BlockId(number));
    } else {
      const auto queue = static_cast<uint32_t>(prng.NextBelow(ReturnModel::kClasses));
      order.Add(BlockId(number), parent, {.queue = queue, .weight = now_ms, .stamp = stamp});
    }
    present[number] = !present[number];

    using Worth = std::tuple<double, uint64_t, uint64_t>;
    std::optional<std::pair<Worth, BlockId>> least;
    std::optional<std::pair<uint64_t, BlockId>> oldest;
    for (uint32_t queue = 0; queue < ReturnModel::kClasses; ++queue) {
      for (const LeafOrder::Leaf* leaf : {order.FirstOf(queue), order.LastOf(queue)}) {
        if (leaf == nullptr) continue;
        const Worth worth(model.Worth(queue, now_ms - leaf->weight), leaf->weight, leaf->stamp);
        if (!least || worth < least->first) least = {worth, leaf->block};
        if (!oldest || leaf->stamp < oldest->first) oldest = {leaf->stamp, leaf->block};
      }
    }
    const BlockId wanted = least ? least->second : BlockId::None();
    ASSERT_EQ(least_worth.Find(order, model, now_ms), wanted) << "step " << stamp;
    ASSERT_EQ(least_worth.Find(order, model, now_ms), wanted) << "again, step " << stamp;
    if (oldest && wanted != oldest->second) ++by_worth;
    if (!prng.NextChance(10)) continue;
    ASSERT_EQ(least_worth.FindOldest(order), oldest ? oldest->second : BlockId::None());
  }
  EXPECT_GT(by_worth, 1000u) << "else an order by age would pass";
}

}  // namespace
}  // namespace quire::evict

// The return model beside one of plain loops: the same outcomes, the same worth.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/prng.h"
#include "evict/return_model.h"

namespace quire::evict {
namespace {

constexpr uint32_t kAges = ReturnModel::kAges;
constexpr uint32_t kClasses = ReturnModel::kClasses;
using Values = std::vector<double>;  // [kAges]

double BeginMs(uint32_t age) { return ReturnModel::AgeBeginMs(age); }

// Each value is spread over its neighbours: 3/9 stay, 2/9 and 1/9 go to either side. What would
// leave the table counts for its end again.
Values Spread(const Values& values) {
  Values spread(kAges);
  for (int i = 0; i < static_cast<int>(kAges); ++i) {
    for (const auto& [steps, share] : {std::pair(-2, 1), {-1, 2}, {0, 3}, {1, 2}, {2, 1}}) {
      spread[i] += values[std::clamp(i + steps, 0, static_cast<int>(kAges) - 1)] * share / 9;
    }
  }
  return spread;
}

// The best of all stretches that begin at an age.
double BestRate(const Values& hazard, uint32_t begin) {
  double best = 0;
  double hits = 0;
  double time_ms = 0;
  double alive = 1;
  for (uint32_t age = begin; age < kAges; ++age) {
    const double returns = -std::expm1(-hazard[age] * (BeginMs(age + 1) - BeginMs(age)));
    hits += alive * returns;
    time_ms += alive * returns / hazard[age];
    alive *= 1 - returns;
    best = std::max(best, hits / time_ms);
  }
  return best;
}

class NaiveReturnModel {
 public:
  NaiveReturnModel() { weights_[0] = -1; }

  double Score(const ReturnFeatures& features) const {
    double score = 0;
    for (uint32_t i = 0; i < kReturnFeatures; ++i) score += weights_[i] * double{features[i]};
    return score;
  }
  void Learn(const ReturnFeatures& features, bool returned) {
    const double chance = 1 / (1 + std::exp(-Score(features)));
    for (uint32_t i = 0; i < kReturnFeatures; ++i) {
      const double gradient = ((returned ? 1 : 0) - chance) * double{features[i]};
      squares_[i] += gradient * gradient;
      weights_[i] += 0.1 * gradient / std::sqrt(squares_[i] + 0.001);
    }
  }
  uint32_t ClassOf(double score) const {
    return static_cast<uint32_t>(
        std::ranges::count_if(class_ends_, [score](double end) { return end < score; }));
  }
  void CountReturn(uint32_t of_class, uint64_t age_ms) {
    returned_[of_class][ReturnModel::AgeOf(age_ms)] += 1;
  }
  void CountLost(uint32_t of_class, uint64_t age_ms) {
    lost_[of_class][ReturnModel::AgeOf(age_ms)] += 1;
  }

  void Refit(Values scores, const ReturnModel::ClassAges& watched) {
    if (scores.size() < 32) return;
    std::ranges::sort(scores);
    for (uint32_t i = 1; i < kClasses; ++i) {
      class_ends_[i - 1] = scores[scores.size() * i / kClasses];
    }
    Values all_returns(kAges);
    Values all_exposure(kAges);
    std::array<Values, kClasses> returns;
    std::array<Values, kClasses> exposure;
    for (uint32_t c = 0; c < kClasses; ++c) {
      exposure[c].resize(kAges);
      // A block watched for longer than an age was at risk for all of it, one whose watch ended in
      // it for half.
      for (uint32_t age = 0; age < kAges; ++age) {
        for (uint32_t end = age; end < kAges; ++end) {
          const double blocks = returned_[c][end] + lost_[c][end] + watched[c][end];
          exposure[c][age] += blocks * (end == age ? 0.5 : 1) * (BeginMs(age + 1) - BeginMs(age));
        }
      }
      returns[c] = Spread(returned_[c]);
      exposure[c] = Spread(exposure[c]);
      for (uint32_t age = 0; age < kAges; ++age) {
        all_returns[age] += returns[c][age];
        all_exposure[age] += exposure[c][age];
      }
      for (double& count : returned_[c]) count *= 0.9;
      for (double& count : lost_[c]) count *= 0.9;
    }
    SetHorizon(all_returns);
    const Values pooled = Pooled(all_returns, all_exposure);
    for (uint32_t c = 0; c < kClasses; ++c) SetWorth(c, pooled, returns[c], exposure[c]);
  }

  double horizon_ms() const { return horizon_ms_; }
  double Worth(uint32_t of_class, uint32_t age) const { return worth_[of_class][age]; }

 private:
  void SetHorizon(const Values& returns) {
    double all = 0;
    for (const double count : returns) all += count;
    uint32_t ages = 0;
    for (double seen = 0; seen < 0.8 * all && ages < kAges - 1; ++ages) seen += returns[ages];
    horizon_ms_ = BeginMs(ages + 1);
  }

  // With a hundredth of a return more, at a chance of one over the age.
  static Values Pooled(const Values& returns, const Values& exposure) {
    double all = 1e-9;
    double in_ages = 1e-9;
    for (uint32_t age = 0; age < kAges; ++age) {
      all += returns[age];
      in_ages += exposure[age] / (BeginMs(age + 1) + 16);
    }
    Values pooled(kAges);
    for (uint32_t age = 0; age < kAges; ++age) {
      const double tail = all / in_ages / (BeginMs(age + 1) + 16);
      pooled[age] = (returns[age] + 0.01) / (exposure[age] + 0.01 / tail);
    }
    return pooled;
  }

  // A class by its own factor, and with twenty returns more at the chance that this makes.
  void SetWorth(uint32_t of_class, const Values& pooled, const Values& returns,
                const Values& exposure) {
    double happened = 2;
    double expected = 2;
    for (uint32_t age = 0; age < kAges; ++age) {
      happened += returns[age];
      expected += pooled[age] * exposure[age];
    }
    Values hazard(kAges);
    for (uint32_t age = 0; age < kAges; ++age) {
      const double prior = pooled[age] * happened / expected;
      hazard[age] = (returns[age] + 20) / (exposure[age] + 20 / prior);
    }
    worth_[of_class].resize(kAges);
    for (uint32_t age = 0; age < kAges; ++age) worth_[of_class][age] = BestRate(hazard, age);
  }

  std::array<double, kReturnFeatures> weights_ = {};
  std::array<double, kReturnFeatures> squares_ = {};
  std::array<double, kClasses - 1> class_ends_ = {};
  std::array<Values, kClasses> returned_ = EmptyAges();
  std::array<Values, kClasses> lost_ = EmptyAges();
  std::array<Values, kClasses> worth_ = EmptyAges();
  double horizon_ms_ = 0;

  static std::array<Values, kClasses> EmptyAges() {
    std::array<Values, kClasses> ages;
    ages.fill(Values(kAges));
    return ages;
  }
};

// Times of all orders of magnitude.
uint64_t SomeAgeMs(Prng& prng) { return prng.Next64() >> (24 + prng.NextBelow(40)); }

void CompareWorth(const ReturnModel& model, const NaiveReturnModel& judge) {
  for (uint32_t c = 0; c < kClasses; ++c) {
    for (uint32_t age = 0; age < kAges; ++age) {
      const auto age_ms = static_cast<uint64_t>(BeginMs(age));
      if (ReturnModel::AgeOf(age_ms) != age) continue;  // the first ages are finer than a unit
      ASSERT_NEAR(model.Worth(c, age_ms) / judge.Worth(c, age), 1, 1e-9)
          << "class " << c << ", age " << age;
    }
  }
}

TEST(ReturnModelLockstep, TheSameOutcomesMakeTheSameWorth) {
  Prng prng(21);
  ReturnModel model;
  NaiveReturnModel judge;
  for (uint64_t fit = 1; fit <= 12; ++fit) {
    const bool any = fit > 1;  // at first nothing is known
    for (int i = 0; i < (any ? 300 : 0); ++i) {
      // Classes differ in how often they return, and when; one sees nothing for long.
      const auto of_class = static_cast<uint32_t>(prng.NextBelow(fit < 6 ? 7 : 8));
      const bool returned = prng.NextBelow(10) < 1 + of_class;
      const uint64_t age_ms = SomeAgeMs(prng) >> of_class;
      if (returned) {
        model.CountReturn(of_class, age_ms);
        judge.CountReturn(of_class, age_ms);
      } else {
        model.CountLost(of_class, age_ms);
        judge.CountLost(of_class, age_ms);
      }
    }
    ReturnModel::ClassAges watched = {};
    for (int i = 0; i < (any ? 200 : 0); ++i) {
      ++watched[prng.NextBelow(kClasses)][ReturnModel::AgeOf(SomeAgeMs(prng))];
    }
    Values scores(32 + prng.NextBelow(100));
    for (double& score : scores) score = prng.NextDouble();
    Values shuffled = scores;
    model.Refit(shuffled, watched);
    judge.Refit(scores, watched);
    ASSERT_EQ(model.fits(), fit);
    ASSERT_EQ(model.horizon_ms(), judge.horizon_ms());
    for (int i = 0; i < 100; ++i) {
      const double score = i % 2 == 0 ? prng.NextDouble() : scores[prng.NextBelow(scores.size())];
      ASSERT_EQ(model.ClassOf(score), judge.ClassOf(score));
    }
    CompareWorth(model, judge);
    if (HasFatalFailure()) FAIL() << "fit " << fit;
  }
}

TEST(ReturnModelLockstep, TheHorizonIsInTheTable) {
  Values scores(100, 0.5);
  ReturnModel none_returned;
  none_returned.CountLost(0, 1000);
  none_returned.Refit(scores, {});
  EXPECT_EQ(none_returned.horizon_ms(), BeginMs(1));
  ReturnModel all_late;
  for (int i = 0; i < 100; ++i) all_late.CountReturn(0, UINT64_MAX);
  all_late.Refit(scores, {});
  EXPECT_EQ(all_late.horizon_ms(), BeginMs(kAges));
}

TEST(ReturnModelLockstep, FewerThan32ScoresSayNothing) {
  ReturnModel model;
  model.CountReturn(2, 1000);
  Values scores(31, 0.5);
  model.Refit(scores, {});
  EXPECT_EQ(model.fits(), 0u);
  EXPECT_EQ(model.Worth(2, 0), 0.0);
  scores.assign(32, 0.5);
  model.Refit(scores, {});
  EXPECT_EQ(model.fits(), 1u);
  EXPECT_GT(model.Worth(2, 0), 0.0);
}

TEST(ReturnModelLockstep, EveryFeatureIsLearnedFrom) {
  Prng prng(22);
  ReturnModel model;
  NaiveReturnModel judge;
  for (int i = 0; i < 500; ++i) {
    ReturnFeatures features = {1};
    for (uint32_t f = 1; f < kReturnFeatures; ++f) features[f] = prng.NextFloat(-1, 1);
    const bool returned = features[1 + i % (kReturnFeatures - 1)] > 0;
    model.Learn(features, returned);
    judge.Learn(features, returned);
    ASSERT_NEAR(model.Score(features), judge.Score(features), 1e-9) << "outcome " << i;
  }
}

}  // namespace
}  // namespace quire::evict

#include "evict/return_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace quire::evict {
namespace {

using Ages = ReturnModel::Ages;

constexpr double kLearningRate = 0.1;
constexpr double kOutcomeKnown = 0.8;  // of the returns, at the horizon
constexpr double kKept = 0.9;          // of the counts, from one fit to the next
constexpr size_t kScoresMin = 32;      // fewer say nothing
constexpr double kOwnReturns = 20;     // a class's own evidence weighs as much as all classes' here
constexpr double kTailReturns = 0.01;  // weight of the belief about ages that no block has reached
constexpr auto kAgeUnitMs = static_cast<double>(ReturnModel::kAgeUnitMs);

// When an age begins, and how long it is.
struct AgeTable {
  std::array<double, ReturnModel::kAges + 1> begin_ms;
  Ages width_ms;

  AgeTable() : begin_ms(), width_ms() {
    for (uint32_t age = 0; age <= ReturnModel::kAges; ++age) {
      begin_ms[age] = kAgeUnitMs * (std::ldexp(4 + age % 4, static_cast<int>(age / 4) - 2) - 1);
    }
    for (uint32_t age = 0; age < ReturnModel::kAges; ++age) {
      width_ms[age] = begin_ms[age + 1] - begin_ms[age];
    }
  }
};

const AgeTable& Table() {
  static const AgeTable table;
  return table;
}

double Width(uint32_t age) { return Table().width_ms[age]; }

// Neighbours in age say much about each other.
Ages Smooth(const Ages& values) {
  Ages smooth = {};
  constexpr int kLast = ReturnModel::kAges - 1;
  for (int i = 0; i <= kLast; ++i) {
    for (int near = -2; near <= 2; ++near) {
      smooth[i] += values[std::clamp(i + near, 0, kLast)] * (3 - std::abs(near)) / 9;
    }
  }
  return smooth;
}

}  // namespace

ReturnModel::ReturnModel() : horizon_ms_(std::numeric_limits<double>::infinity()) {
  weights_[0] = -1;  // most do not return, until seen otherwise
}

double ReturnModel::AgeBeginMs(uint32_t age) { return Table().begin_ms[age]; }

double ReturnModel::Score(const ReturnFeatures& features) const {
  double score = 0;
  for (uint32_t i = 0; i < kReturnFeatures; ++i) score += weights_[i] * double{features[i]};
  return score;
}

uint32_t ReturnModel::ClassOf(double score) const {
  uint32_t found = 0;
  for (const double end : class_ends_) found += score > end ? 1 : 0;
  return found;
}

void ReturnModel::Learn(const ReturnFeatures& features, bool returned) {
  const double error = (returned ? 1.0 : 0.0) - 1 / (1 + std::exp(-Score(features)));
  for (uint32_t i = 0; i < kReturnFeatures; ++i) {
    const double step = error * double{features[i]};
    gradients_[i] += step * step;
    weights_[i] += kLearningRate * step / std::sqrt(1e-3 + gradients_[i]);
  }
}

// The actuary's estimate: at risk at an age are the blocks watched at least that long, and half of
// those whose watch ended at this age.
ReturnModel::Evidence ReturnModel::EvidenceOf(uint32_t of_class, const Ages& watched) const {
  Evidence evidence = {.returns = returned_[of_class]};
  double longer = 0;
  for (uint32_t age = kAges; age-- > 0;) {
    const double ended = returned_[of_class][age] + lost_[of_class][age] + watched[age];
    evidence.exposure_ms[age] = (longer + ended / 2) * Width(age);
    longer += ended;
  }
  return evidence;
}

void ReturnModel::SetHorizon(const Ages& returns) {
  double all = 0;
  for (const double count : returns) all += count;
  uint32_t age = 0;
  for (double seen = 0; age + 1 < kAges && seen < kOutcomeKnown * all; ++age) seen += returns[age];
  horizon_ms_ = AgeBeginMs(age + 1);
}

// At ages that no block has reached, the chance falls with one over the age, as it does for almost
// everything that people return to; that is an order by recency.
Ages ReturnModel::PooledHazard(const Evidence& pooled) {
  double returns = 0;
  double ages = 0;
  for (uint32_t age = 0; age < kAges; ++age) {
    returns += pooled.returns[age];
    ages += pooled.exposure_ms[age] / (AgeBeginMs(age + 1) + kAgeUnitMs);
  }
  const double per_age = (returns + 1e-9) / (ages + 1e-9);
  Ages hazard = {};
  for (uint32_t age = 0; age < kAges; ++age) {
    const double tail_ms = kTailReturns * (AgeBeginMs(age + 1) + kAgeUnitMs) / per_age;
    hazard[age] = (pooled.returns[age] + kTailReturns) / (pooled.exposure_ms[age] + tail_ms);
  }
  return hazard;
}

// As all classes do, by a factor of its own, and by its own shape where there is enough of it.
Ages ReturnModel::HazardOf(const Evidence& own, const Ages& pooled) {
  double returns = 2;
  double expected = 2;
  for (uint32_t age = 0; age < kAges; ++age) {
    returns += own.returns[age];
    expected += pooled[age] * own.exposure_ms[age];
  }
  Ages hazard = {};
  for (uint32_t age = 0; age < kAges; ++age) {
    const double prior = pooled[age] * returns / expected;
    hazard[age] = (own.returns[age] + kOwnReturns) / (own.exposure_ms[age] + kOwnReturns / prior);
  }
  return hazard;
}

// From the oldest age down. A stretch of ages promises so many hits in so much time to a block
// that enters it, and some blocks leave it alive. What an age promises best is a stretch that
// begins with it and goes on as long as the stretch that follows promises more per time than it
// does itself.
Ages ReturnModel::GittinsIndex(const Ages& hazard) {
  struct Stretch {
    double hits = 0;
    double time_ms = 0;
    double survive = 1;
  };
  std::array<Stretch, kAges> best;  // of the ages begun with, the youngest last
  size_t count = 0;
  Ages index = {};
  for (uint32_t age = kAges; age-- > 0;) {
    const double returns = -std::expm1(-hazard[age] * Width(age));  // of blocks that enter the age
    Stretch stretch = {returns, returns / hazard[age], 1 - returns};
    while (count > 0) {
      const Stretch& next = best[count - 1];
      if (next.hits * stretch.time_ms <= stretch.hits * next.time_ms) break;
      stretch.hits += stretch.survive * next.hits;
      stretch.time_ms += stretch.survive * next.time_ms;
      stretch.survive *= next.survive;
      --count;
    }
    best[count++] = stretch;
    index[age] = stretch.hits / stretch.time_ms;
  }
  return index;
}

void ReturnModel::Refit(std::vector<double>& scores, const ClassAges& watched) {
  if (scores.size() < kScoresMin) return;
  ++fits_;
  auto from = scores.begin();
  for (size_t i = 0; i < class_ends_.size(); ++i) {
    const auto end = scores.begin() + static_cast<ptrdiff_t>(scores.size() * (i + 1) / kClasses);
    std::ranges::nth_element(from, end, scores.end());
    class_ends_[i] = *end;
    from = end;
  }
  std::array<Evidence, kClasses> evidence;
  Evidence pooled;
  for (uint32_t i = 0; i < kClasses; ++i) {
    evidence[i] = EvidenceOf(i, watched[i]);
    evidence[i] = {Smooth(evidence[i].returns), Smooth(evidence[i].exposure_ms)};
    for (uint32_t age = 0; age < kAges; ++age) {
      pooled.returns[age] += evidence[i].returns[age];
      pooled.exposure_ms[age] += evidence[i].exposure_ms[age];
    }
  }
  SetHorizon(pooled.returns);
  const Ages hazard = PooledHazard(pooled);
  for (uint32_t i = 0; i < kClasses; ++i) {
    worth_[i] = GittinsIndex(HazardOf(evidence[i], hazard));
    for (double& count : returned_[i]) count *= kKept;
    for (double& count : lost_[i]) count *= kKept;
  }
}

void LeastWorth::StartAfresh(By by) {
  by_ = by;
  versions_.fill(UINT64_MAX);
}

void LeastWorth::Offer(uint32_t of_class, const Candidate& candidate) {
  offers_[of_class] = candidate;
  const bool stays_first = of_class == first_ && candidate.Precedes(offers_[next_]);
  const bool stays_behind =
      of_class != first_ && of_class != next_ && !candidate.Precedes(offers_[next_]);
  if (!stays_first && !stays_behind) Rank();
}

void LeastWorth::Rank() {
  first_ = 0;
  next_ = 1;
  if (offers_[next_].Precedes(offers_[first_])) std::swap(first_, next_);
  for (uint32_t i = 2; i < offers_.size(); ++i) {
    if (offers_[i].Precedes(offers_[first_])) {
      next_ = std::exchange(first_, i);
    } else if (offers_[i].Precedes(offers_[next_])) {
      next_ = i;
    }
  }
}

BlockId LeastWorth::Find(const LeafOrder& order, const ReturnModel& model, uint64_t now_ms) {
  if (by_ != By::kWorth || now_ms != now_ms_ || model.fits() != fits_) StartAfresh(By::kWorth);
  now_ms_ = now_ms;
  fits_ = model.fits();
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    if (versions_[i] == order.version(i)) continue;
    versions_[i] = order.version(i);
    Candidate least;
    for (const LeafOrder::Leaf* leaf : {order.FirstOf(i), order.LastOf(i)}) {
      if (leaf == nullptr) continue;
      const Candidate candidate = {.worth = model.Worth(i, now_ms - leaf->weight),
                                   .time_ms = leaf->weight,
                                   .stamp = leaf->stamp,
                                   .block = leaf->block};
      if (candidate.Precedes(least)) least = candidate;
    }
    Offer(i, least);
  }
  return offers_[first_].block;
}

BlockId LeastWorth::FindOldest(const LeafOrder& order) {
  if (by_ != By::kAge) StartAfresh(By::kAge);
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    if (versions_[i] == order.version(i)) continue;
    versions_[i] = order.version(i);
    const LeafOrder::Leaf* leaf = order.FirstOf(i);
    Offer(i, leaf != nullptr ? Candidate{.stamp = leaf->stamp, .block = leaf->block} : Candidate{});
  }
  return offers_[first_].block;
}

}  // namespace quire::evict

#include "bench/pairs.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "base/bits.h"
#include "base/check.h"
#include "bench/instructions.h"
#include "bench/quiet.h"

namespace quire::bench {
namespace {

/// Less than this in half of the passes is no longer worth waiting for.
constexpr double kSettled = 0.01;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of one pass.
constexpr uint32_t kRoundsPerPass = 5;

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

Row RowOf(const std::string& name, const Exact& exact) {
  const double ratio = exact.less_is_better ? exact.floor / exact.value : exact.value / exact.floor;
  return {.name = name,
          .unit = exact.unit,
          .less_is_better = exact.less_is_better,
          .value = exact.value,
          .floor = exact.floor,
          .ratio = ratio,
          .median = ratio,
          .pairs = 0,
          .slice = {},
          .note = exact.note};
}

Row RowOf(const std::string& name, const Timed& timed, const Turns& turns) {
  return {.name = name,
          .unit = timed.unit,
          .less_is_better = timed.less_is_better,
          .value = FigureOf(timed, turns.first_s),
          .floor = FigureOf(timed, turns.second_s),
          .ratio = turns.second_s / turns.first_s,
          .median = turns.median,
          .pairs = turns.pairs,
          .slice = timed.slice,
          .note = timed.note ? timed.note() : std::string()};
}

}  // namespace

double ThreadSeconds() {
  timespec now = {};
  QUIRE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double SecondsOf(Executor& executor, const std::function<void()>& body) {
  const bool alone = executor.worker_count() == 1;
  const QuietMoment quiet(executor);
  ToggleCounting();
  const double begin_s = alone ? ThreadSeconds() : SteadySeconds();
  body();
  const double seconds = (alone ? ThreadSeconds() : SteadySeconds()) - begin_s;
  ToggleCounting();
  return seconds;
}

double Median(std::vector<double> values) {
  QUIRE_CHECK(!values.empty());
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

Result<void> Contest::Run(uint32_t rounds, uint32_t places, const Slice& first,
                          const Slice& second) {
  QUIRE_CHECK(rounds > 0 && places > 0);
  best_first_s_.resize(places, std::numeric_limits<double>::infinity());
  best_second_s_.resize(places, std::numeric_limits<double>::infinity());
  for (uint32_t round = 0; round < rounds; ++round) {
    const bool second_begins = round % 2 == 1;  // neither always follows the other
    for (uint32_t place = 0; place < places; ++place) {
      double first_s = 0, second_s = 0;
      if (second_begins) {
        QUIRE_ASSIGN(second_s, second(place));
      }
      QUIRE_ASSIGN(first_s, first(place));
      if (!second_begins) {
        QUIRE_ASSIGN(second_s, second(place));
      }
      best_first_s_[place] = std::min(best_first_s_[place], first_s);
      best_second_s_[place] = std::min(best_second_s_[place], second_s);
      ratios_.push_back(second_s / first_s);
    }
  }
  sums_s_.emplace_back(Sum(best_first_s_), Sum(best_second_s_));
  return {};
}

bool Contest::Settled(uint32_t runs_min) const {
  if (ended_) return true;
  const size_t runs = sums_s_.size();
  if (runs < runs_min) return false;
  const auto& [first_s, second_s] = sums_s_.back();
  const auto& [first_half_s, second_half_s] = sums_s_[(runs - 1) / 2];
  return runs >= size_t{runs_min} * kRunsFactorMax ||
         (first_s >= first_half_s * (1 - kSettled) && second_s >= second_half_s * (1 - kSettled));
}

Turns Contest::turns() const {
  return {.first_s = Sum(best_first_s_),
          .second_s = Sum(best_second_s_),
          .median = Median(ratios_),
          .pairs = static_cast<uint32_t>(ratios_.size())};
}

Result<void> InPasses(
    uint32_t rounds_min, std::vector<Contest>& contests,
    const std::function<Result<void>(size_t i, uint32_t rounds, Contest& contest)>& run) {
  QUIRE_CHECK(rounds_min > 0);
  const uint32_t passes_min = DivUp(rounds_min, kRoundsPerPass);
  const uint32_t rounds = DivUp(rounds_min, passes_min);
  for (bool settled = false; !settled;) {
    settled = true;
    for (size_t i = 0; i < contests.size(); ++i) {
      if (contests[i].Settled(passes_min)) continue;
      QUIRE_TRY(run(i, rounds, contests[i]));
      settled = settled && contests[i].Settled(passes_min);
    }
  }
  return {};
}

double FigureOf(const Timed& timed, double seconds) {
  return timed.less_is_better ? seconds * timed.amount : timed.amount / seconds;
}

Result<std::vector<Row>> Measure(std::span<const Case> cases, uint32_t rounds_min,
                                 const std::function<void(const std::string&)>& progress) {
  std::vector<Row> rows(cases.size());
  std::vector<Contest> contests(cases.size());
  const auto run = [&](size_t i, uint32_t rounds, Contest& contest) -> Result<void> {
    progress(cases[i].name);
    QUIRE_ASSIGN(const Subject subject, cases[i].prepare());
    if (const auto* exact = std::get_if<Exact>(&subject)) {
      rows[i] = RowOf(cases[i].name, *exact);
      contest.End();
      return {};
    }
    const Timed& timed = std::get<Timed>(subject);
    QUIRE_TRY(contest.Run(rounds, timed.places, timed.work, timed.floor));
    rows[i] = RowOf(cases[i].name, timed, contest.turns());
    return {};
  };
  QUIRE_TRY(InPasses(rounds_min, contests, run));
  return rows;
}

}  // namespace quire::bench

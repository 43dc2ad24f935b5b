// Measuring two subjects beside each other on a machine that others use too.
//
// Other programs make a slice slower, never faster. So the two run alternately, slice by slice, and
// of every place the best time counts: only a disturbance of every slice there remains.
#ifndef QUIRE_BENCH_PAIRS_H_
#define QUIRE_BENCH_PAIRS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "quire/env.h"
#include "quire/error.h"

namespace quire::bench {

/// Seconds of this thread on its core: for work that never waits, so that what else the machine
/// runs is not counted.
double ThreadSeconds();

/// Seconds that `body` takes: of this thread on its core where the executor has one thread, else by
/// the clock on the wall, from the moment when all threads are awake; as quiet as the system allows
/// (QuietMoment).
double SecondsOf(Executor& executor, const std::function<void()>& body);

double Median(std::vector<double> values);

/// The times of two subjects that ran alternately, for one round.
struct Turns {
  double first_s = 0;   // the sum over the places of the best time of each
  double second_s = 0;  // likewise
  double median = 0;    // of second / first, slice by slice
  uint32_t pairs = 0;   // slices of each
};

using Slice = std::function<Result<double>(uint32_t place)>;  // seconds

/// One case while it is measured.
class Contest {
 public:
  /// Runs rounds of slices alternately. The places are the same at every call.
  /// Errors: what a slice returns
  Result<void> Run(uint32_t rounds, uint32_t places, const Slice& first, const Slice& second);
  /// Nothing has to be run any more.
  void End() { ended_ = true; }

  /// Whether the second half of the calls of Run, of which there were at least `runs_min`, lowered
  /// neither sum by more than one percent; or there were kRunsFactorMax times as many.
  bool Settled(uint32_t runs_min) const;
  Turns turns() const;

 private:
  std::vector<double> best_first_s_, best_second_s_;  // by place
  std::vector<double> ratios_;
  std::vector<std::pair<double, double>> sums_s_;  // after each call of Run
  bool ended_ = false;
};
inline constexpr uint32_t kRunsFactorMax = 4;

/// Measures several cases in passes over all of them, some rounds of each at a time: so a row
/// samples the whole time of the measurement, during which other programs take more or less. Of
/// every case at least `rounds_min` rounds, and more while it is not settled.
///
/// `run` prepares case i anew and calls Run, or End.
/// Errors: what `run` returns
Result<void> InPasses(
    uint32_t rounds_min, std::vector<Contest>& contests,
    const std::function<Result<void>(size_t i, uint32_t rounds, Contest& contest)>& run);

/// One line of a report.
struct Row {
  std::string name;  // "case" in JSON
  std::string unit;
  bool less_is_better = false;
  double value = 0;    // of the best slices
  double floor = 0;    // likewise; same unit as value
  double ratio = 0;    // achieved share of the floor, 1.0 = at the limit: best floor / best work
  double median = 0;   // the same of all pairs; 1.0 = at the limit
  uint32_t pairs = 0;  // slices of each; 0: no clock was needed
  std::string slice;   // what a slice of work does
  std::string note;
};

/// The figure of a round that took so many seconds.
double FigureOf(const Timed& timed, double seconds);

/// Measures cases beside their floors, in passes. `progress` is called with the case that runs.
/// Errors: what preparing one returns
Result<std::vector<Row>> Measure(std::span<const Case> cases, uint32_t rounds_min,
                                 const std::function<void(const std::string&)>& progress);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_PAIRS_H_

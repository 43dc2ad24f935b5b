// Measuring two things beside each other on a machine that others use too.
//
// Neighbours make a slice slower, never faster. So the two take turns slice by slice, and of every
// place the best time counts: what is left of the neighbours is what no slice at that place escaped.
#ifndef QUIRE_BENCH_PAIRS_H_
#define QUIRE_BENCH_PAIRS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "quire/env.h"
#include "quire/error.h"

namespace quire::bench {

/// Seconds of this thread on its core: for work that never waits, so that what else the machine
/// runs is not counted.
double ThreadSeconds();

/// A pool whose threads, the calling one too, stay each on a processor of its own as long as there
/// are enough: else a busy machine puts two of them on one. With one thread the caller may run
/// anywhere.
std::unique_ptr<Executor> MakePinnedPool(uint32_t threads);

/// Seconds that `body` takes: of this thread on its core where the executor has one thread, else by
/// the clock on the wall, from the moment when all threads are awake.
double SecondsOf(Executor& executor, const std::function<void()>& body);

double Median(std::vector<double> values);

/// What two things that took turns needed for one round.
struct Turns {
  double first_s = 0;   // the sum over the places of the best time of each
  double second_s = 0;  // likewise
  double median = 0;    // of second / first, slice by slice
  uint32_t pairs = 0;   // slices of each
};

using Slice = std::function<Result<double>(uint32_t place)>;  // seconds

/// Runs rounds of slices in turn, at least `rounds_min` (1 or more) and at most kRoundsFactorMax
/// times as many: it ends when the second half of the rounds lowered neither sum by more than one
/// percent.
///
/// Errors: what a slice returns
Result<Turns> TakeTurns(uint32_t rounds_min, uint32_t places, const Slice& first,
                        const Slice& second);
inline constexpr uint32_t kRoundsFactorMax = 8;

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

/// Prepares a case and measures it beside its floor.
/// Errors: what preparing it returns
Result<Row> Measure(const Case& which, uint32_t rounds_min);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_PAIRS_H_

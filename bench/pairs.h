// Measuring against a floor, side by side.
#ifndef QUIRE_BENCH_PAIRS_H_
#define QUIRE_BENCH_PAIRS_H_

#include <functional>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace quire::bench {

/// One thing to measure and what bounds it.
struct PairedCase {
  std::string name;               // of the row: "allocate_free/t1"
  std::string unit;               // of both figures
  bool less_is_better = false;    // true for times, false for rates
  std::function<double()> work;   // runs once and returns its figure
  std::function<double()> floor;  // the same for the floor
};

/// Seconds of this thread on its core: for work that never waits, so that what else the machine
/// runs is not meant.
double ThreadSeconds();

/// Seconds that pass, for work of several threads.
double NowSeconds();

/// Whether options.cases asks for a row.
bool IsWanted(const Options& options, const std::string& name);

/// Runs work and floor in turn, options.pairs times, so that whatever else the machine does meets
/// both. Medians; the note says "void" when the floor spreads more than 10 %: then the machine was
/// too busy for the row to mean anything.
Row MeasurePairs(const Options& options, const PairedCase& paired);

/// The same, added to the rows, if options.cases asks for it.
void AddPairs(const Options& options, const PairedCase& paired, std::vector<Row>& rows);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_PAIRS_H_

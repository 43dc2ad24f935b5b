// Counting instructions: a figure that no neighbour changes. The program runs under callgrind
// (docs/benchmarks.md), which counts the instructions between the calls below.
#ifndef QUIRE_BENCH_INSTRUCTIONS_H_
#define QUIRE_BENCH_INSTRUCTIONS_H_

namespace quire::bench {

/// Whether this build can be counted: valgrind's header was there when it was compiled.
bool CanCount();

/// Whether this process runs under valgrind.
bool IsCounted();

/// Instructions between two calls are counted, inside of StartCounting and StopCounting. Costs next
/// to nothing while nothing is counted.
void ToggleCounting();

/// Begins a count at 0.
void StartCounting();
/// Ends it and has callgrind write it to the next file of its series.
void StopCounting();

}  // namespace quire::bench

#endif  // QUIRE_BENCH_INSTRUCTIONS_H_

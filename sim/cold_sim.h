// The cold store on a machine that fails, driven by one seed, and an oracle that knows every byte.
#ifndef QUIRE_SIM_COLD_SIM_H_
#define QUIRE_SIM_COLD_SIM_H_

#include <cstdint>
#include <string>

#include "base/hash.h"

namespace quire::sim {

struct SimOptions {
  uint64_t seed = 1;
  uint64_t steps = 2000;
};

/// What a run saw. Everything but steps, faults and digest is 0 in a store that keeps its promises.
struct SimReport {
  uint64_t steps = 0;
  uint64_t faults = 0;
  uint64_t crashes = 0;
  uint64_t loaded = 0;           // records that came back, all of them compared
  uint64_t wrong_bytes = 0;      // loads that gave other bytes than were put, or an erased record
  uint64_t lost = 0;             // records or epochs that were durable and are gone after a crash
  uint64_t over_cap = 0;         // steps after which the files were longer than the cap
  uint64_t unexplained = 0;      // misses without any fault that would explain them
  uint64_t stuck = 0;            // requests that never ended, or a store that did not recover
  std::string first_problem;     // in words; empty when there was none
  Blake2b<16>::Digest digest{};  // of everything that happened: equal for equal seeds

  uint64_t problems() const { return wrong_bytes + lost + over_cap + unexplained + stuck; }
};

/// Runs one seed. Seeds differ in what may fail: crashes alone, errors that are reported, or damage
/// that nobody reports.
///
/// Threads: one run at a time in a process (SQLite's random numbers are seeded for all of it)
SimReport RunColdSim(const SimOptions& options);

}  // namespace quire::sim

#endif  // QUIRE_SIM_COLD_SIM_H_

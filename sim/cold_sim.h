// The cold store on a machine that fails, driven by one seed, and an oracle that knows every byte.
#ifndef QUIRE_SIM_COLD_SIM_H_
#define QUIRE_SIM_COLD_SIM_H_

#include "sim/sim.h"

namespace quire::sim {

/// Runs one seed. Seeds differ in what may fail: crashes alone, errors that are reported, or damage
/// that no call reports.
///
/// Threads: one run at a time in a process (SQLite's random numbers are seeded for all of it)
SimReport RunColdSim(const SimOptions& options);

}  // namespace quire::sim

#endif  // QUIRE_SIM_COLD_SIM_H_

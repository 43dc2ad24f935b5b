// Caches, transfers and cold store together on a machine that fails, driven by one seed, and an
// oracle that computes every prefix anew.
#ifndef QUIRE_SIM_CACHE_SIM_H_
#define QUIRE_SIM_CACHE_SIM_H_

#include "sim/sim.h"

namespace quire::sim {

/// Runs one seed: one or two caches on one store, several tenants, prompts that share prefixes.
/// Seeds differ in geometry, profile, sizes and in what may fail (Faults).
///
/// Threads: one run at a time in a process (SQLite's random numbers are seeded for all of it)
SimReport RunCacheSim(const SimOptions& options);

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_SIM_H_

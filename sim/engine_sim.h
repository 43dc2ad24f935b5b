// An engine with its cache, store and sessions on a machine that fails, driven by one seed, and an
// oracle that answers every request alone.
#ifndef QUIRE_SIM_ENGINE_SIM_H_
#define QUIRE_SIM_ENGINE_SIM_H_

#include "sim/sim.h"

namespace quire::sim {

/// Runs one seed: tenants with quotas and floors ask for answers and talk in sessions, read slowly
/// or not at all, cancel, and see the machine restarted. Seeds differ in the model's shape, codec,
/// budget, limits of the engine and in what may fail (Faults).
///
/// Threads: one run at a time in a process (SQLite's random numbers are seeded for all of it)
SimReport RunEngineSim(const SimOptions& options);

}  // namespace quire::sim

#endif  // QUIRE_SIM_ENGINE_SIM_H_

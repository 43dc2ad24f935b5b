// Machines of a fleet on a remote that fails, driven by one seed, and an oracle that knows every byte
// and every erasure.
#ifndef QUIRE_SIM_REMOTE_SIM_H_
#define QUIRE_SIM_REMOTE_SIM_H_

#include "sim/sim.h"

namespace quire::sim {

/// Runs one seed: two or three machines write, read and erase; answers are late, lost, come twice or in
/// another order, are old, cut, changed or another object's; writes that were confirmed are lost;
/// machines are cut off and restarted.
///
/// Threads: any
SimReport RunRemoteSim(const SimOptions& options);

}  // namespace quire::sim

#endif  // QUIRE_SIM_REMOTE_SIM_H_

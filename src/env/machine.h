// What the machine says about itself.
#ifndef QUIRE_ENV_MACHINE_H_
#define QUIRE_ENV_MACHINE_H_

#include <cstdint>

namespace quire {

/// Bytes of the largest cache that holds data for the first CPU; 32 MiB when the system does not
/// say. On a virtual machine it may be shared with strangers.
uint64_t LastLevelCacheBytes();

}  // namespace quire

#endif  // QUIRE_ENV_MACHINE_H_

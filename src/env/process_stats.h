// What this process costs the machine.
#ifndef QUIRE_ENV_PROCESS_STATS_H_
#define QUIRE_ENV_PROCESS_STATS_H_

#include <cstdint>

#include "quire/error.h"

namespace quire {

/// Bytes of physical memory this process holds now, shared pages included.
///
/// Errors: kIo when /proc/self/statm cannot be read
/// Source: proc(5), second field of statm; the kernel may lag by some dozen pages per CPU
Result<uint64_t> ResidentBytes();

}  // namespace quire

#endif  // QUIRE_ENV_PROCESS_STATS_H_

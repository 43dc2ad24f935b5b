// How fast a remote is: records written and read back, as a cache would.
#ifndef QUIRE_REMOTE_MEASURE_H_
#define QUIRE_REMOTE_MEASURE_H_

#include <cstdint>

#include "quire/env.h"
#include "quire/error.h"
#include "remote/address.h"

namespace quire::remote {

struct MeasureOptions {
  uint64_t record_bytes = 1 << 20;
  uint64_t records = 256;
  uint64_t depth = 16;  // under way at a time
};

struct RemoteRate {
  double gb_per_s = 0;
  double cpu_s_per_gb = 0;  // of this process, all its threads
  uint64_t failed = 0;      // records
};

struct RemoteRates {
  RemoteRate put{};
  RemoteRate get{};
};

/// Writes records under a key that no fleet has, reads them back and removes them.
///
/// Errors: as OpenObjects; kInvalidArgument sizes that no record has; kIo it does not answer
Result<RemoteRates> MeasureRemote(const RemoteAddress& address, const MeasureOptions& options,
                                  const Clock& clock);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_MEASURE_H_

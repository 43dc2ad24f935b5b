// What the system knows of this process.
#ifndef QUIRE_SERVE_HTTP_PROCESS_STATS_H_
#define QUIRE_SERVE_HTTP_PROCESS_STATS_H_

#include <cstdint>

namespace quire::serve::http {

struct ProcessStats {
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  double cpu_seconds = 0;
  double start_unix_seconds = 0;
  uint64_t open_descriptors = 0;
  uint64_t descriptors_max = 0;
};

/// What cannot be read is 0.
///
/// Threads: any
ProcessStats ReadProcessStats();

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_PROCESS_STATS_H_

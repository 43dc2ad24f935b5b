// fio, the disk's own measure: what a file can be read and written at, past all caches.
#ifndef QUIRE_BENCH_FIO_H_
#define QUIRE_BENCH_FIO_H_

#include <cstdint>
#include <string>

#include "quire/error.h"

namespace quire::bench {

struct FioJob {
  std::string file{};   // made when it does not exist
  bool writes = false;  // and syncs at the end
  uint64_t bytes = 0;
  uint32_t depth = 16;  // requests in flight
  uint64_t request_bytes = uint64_t{1} << 20;
};

/// Seconds that fio needs, sequentially, O_DIRECT, through io_uring.
/// Errors: kNotFound fio is not installed; kIo it failed
Result<double> FioSeconds(const FioJob& job);

/// The depth at which a file of `bytes` is read, or written, fastest.
Result<uint32_t> BestFioDepth(FioJob job);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_FIO_H_

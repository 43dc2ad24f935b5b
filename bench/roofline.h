// What this machine can do at this moment: streaming reads and multiply-adds.
#ifndef QUIRE_BENCH_ROOFLINE_H_
#define QUIRE_BENCH_ROOFLINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "env/reservation.h"
#include "quire/env.h"

namespace quire::bench {

/// Runs of bytes that are read as one stream. All as long, a multiple of 64, and aligned to 64.
using Runs = std::vector<std::span<const std::byte>>;

/// Seconds to read all runs in order with the executor's threads, about 1 MiB at a time.
double ReadSeconds(const Runs& runs, Executor& executor);

/// Bytes of its own to read, where those of the work cannot be had.
class Stream {
 public:
  /// Maps and touches `bytes`, huge pages if possible.
  explicit Stream(uint64_t bytes);
  const Runs& runs() const { return runs_; }

 private:
  const std::unique_ptr<DeviceMemory> memory_;
  std::optional<Reservation> arena_;
  Runs runs_;
};

/// Seconds for a billion f32 operations by multiply-adds in registers, from a slice of a few
/// milliseconds.
double SecondsPerGigaflop(Executor& executor);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_ROOFLINE_H_

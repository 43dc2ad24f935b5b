// What the simulators share: how a run is asked for, what it reports, and how machines fail.
#ifndef QUIRE_SIM_SIM_H_
#define QUIRE_SIM_SIM_H_

#include <cstdint>
#include <string>

#include "base/hash.h"
#include "env/faulty_files.h"

namespace quire::sim {

struct SimOptions {
  uint64_t seed = 1;
  uint64_t steps = 2000;
};

/// The result of a run. The counters of problems() are 0 where every promise is kept.
struct SimReport {
  uint64_t steps = 0;
  uint64_t faults = 0;
  uint64_t crashes = 0;
  uint64_t answers = 0;          // of an engine, whole ones, all of them compared
  uint64_t loaded = 0;           // records or prefixes that came back, all of them compared
  uint64_t arrived = 0;          // sequences that began with some layers of them, and got the rest
  uint64_t streamed = 0;         // contexts that memory did not hold whole
  uint64_t scanned = 0;          // erasures after which all bytes were looked at
  uint64_t wrong_bytes = 0;      // bytes that are not those of their identity, or that were erased
  uint64_t lost_bytes = 0;       // of records and epochs that were durable and are gone
  uint64_t over_cap = 0;         // steps after which files or memory were over their limit
  uint64_t leaked = 0;           // references without a holder
  uint64_t unexplained = 0;      // misses without any fault that would explain them
  uint64_t stuck = 0;            // requests that never ended, or did not recover
  std::string first_problem;     // in words; empty when there was none
  Blake2b<16>::Digest digest{};  // of everything that happened: equal for equal seeds

  uint64_t problems() const {
    return wrong_bytes + lost_bytes + over_cap + leaked + unexplained + stuck;
  }
};

/// What may fail in a run besides crashes: nothing, calls that report it, or damage that no call
/// reports.
enum class Faults : uint8_t { kCrashes, kReported, kSilent };

inline FaultRates RatesOf(Faults faults) {
  switch (faults) {
    case Faults::kCrashes: return {};
    case Faults::kReported:
      return {.read_error = 40,
              .write_error = 40,
              .sync_error = 40,
              .short_write = 60,
              .call_error = 300};
    case Faults::kSilent:
      return {.read_error = 100,
              .write_error = 100,
              .short_read = 60,
              .torn_write = 30,
              .lost_write = 50,
              .misdirected_write = 50,
              .flip_on_read = 40,
              .flip_at_rest = 30};
  }
  return {};
}

}  // namespace quire::sim

#endif  // QUIRE_SIM_SIM_H_

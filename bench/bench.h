// What every `quire bench` part returns, and what it is measured against.
#ifndef QUIRE_BENCH_BENCH_H_
#define QUIRE_BENCH_BENCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "env/reservation.h"
#include "quire/error.h"

namespace quire::bench {

/// One line of a report. ratio is the achieved share of the floor (1.0 = at the limit), the median
/// of interleaved pairs.
struct Row {
  std::string name;  // reads like "decode/f16/32768/t2"; "case" in JSON
  double value = 0;
  std::string unit;
  double floor = 0;  // same unit as value
  double ratio = 0;
  std::string note;  // "void: roofline spread 14 %" or empty
};

struct Options {
  std::vector<uint32_t> threads = {1, 2};
  uint32_t pairs = 9;                                // interleaved pairs per case, at least 1
  std::function<void(const std::string&)> progress;  // one line about what runs now; may be empty
  // attention, cascade, index: what has this in its name; empty: everything
  std::string cases = {};
  // What `index` replays: the block ids of every request, in order. Empty: nothing is replayed.
  std::vector<std::vector<uint64_t>> trace = {};
  std::string trace_name = {};  // in the rows
};

Result<std::vector<Row>> Pool(const Options& options);
Result<std::vector<Row>> Index(const Options& options);
Result<std::vector<Row>> Attention(const Options& options);
Result<std::vector<Row>> Cascade(const Options& options);
Result<std::vector<Row>> Codecs(const Options& options);
Result<std::vector<Row>> Model(const Options& options);

/// Streams over `bytes` of touched memory with the given threads and returns GB/s (1e9): the read
/// roofline of the moment.
class Roofline {
 public:
  /// Maps and touches `bytes` (beyond the last-level cache), huge pages if possible.
  explicit Roofline(uint64_t bytes);
  Roofline(const Roofline&) = delete;
  Roofline& operator=(const Roofline&) = delete;
  double ReadGbPerSecond(uint32_t threads);

 private:
  const std::unique_ptr<DeviceMemory> memory_;
  std::optional<Reservation> arena_;
};

/// Multiply-adds in registers: the f32 FMA peak of the moment in GFLOP/s.
double FmaPeakGflops(uint32_t threads);

double Median(std::vector<double> values);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_BENCH_H_

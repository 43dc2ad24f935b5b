// The cases of every `quire bench NAME`, each of which can be measured alone.
#ifndef QUIRE_BENCH_BENCH_H_
#define QUIRE_BENCH_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "quire/error.h"

namespace quire::ranks {
class Group;
}  // namespace quire::ranks

namespace quire::cuda {
class Backend;
}  // namespace quire::cuda

namespace quire::bench {

/// A figure that needs no clock: bytes, decibels.
struct Exact {
  std::string unit;
  bool less_is_better = false;
  double value = 0;
  double floor = 0;  // same unit
  std::string note = {};
};

/// Work that takes time, cut into slices of milliseconds, and the floor it is measured against.
///
/// A round visits the places 0, 1, ... in this order. Work that is bound by memory has so many
/// places that a round is several times larger than the last-level cache, so that no slice finds
/// its bytes cached.
struct Timed {
  std::string unit;
  bool less_is_better = false;  // true for times, false for rates
  double amount = 1;            // a round of s seconds has the figure s * amount, or amount / s
  uint32_t places = 1;
  std::string slice;                            // what a slice of work does, in words
  std::function<double(uint32_t place)> work;   // runs one slice; seconds
  std::function<double(uint32_t place)> floor;  // seconds of the floor for as much work
  std::function<std::string()> note = nullptr;  // after the measurement
};

using Subject = std::variant<Exact, Timed>;

struct Case {
  std::string name;                          // reads like "decode/f16/32768/t2"
  std::function<Result<Subject>()> prepare;  // may take seconds and gigabytes
  // With Options::group: what the other ranks do from the time when rank 0 prepares its subject
  // until the subject is gone.
  std::function<Result<void>()> follow = nullptr;
};

/// The time when a request of a trace came, and the length of its answer.
struct Arrival {
  uint64_t timestamp_ms = 0;
  uint64_t output_tokens = 0;
};

struct Options {
  std::vector<uint32_t> threads = {1, 2};
  // Requests that `index` and `serve` replay: the block ids of every request, in order. Empty:
  // none.
  std::vector<std::vector<uint64_t>> trace = {};
  std::vector<Arrival> arrivals = {};  // of the same requests
  std::string trace_name = {};         // in the names of cases
  // Processes that `pipeline` and `ranks` measure, of which this is one. Null: ranks are threads.
  ranks::Group* group = nullptr;
};

// The cases of each bench. Nothing is prepared yet.
std::vector<Case> AttentionCases(const Options& options);
std::vector<Case> BlocksCases(const Options& options);
std::vector<Case> CacheCases(const Options& options);
std::vector<Case> CascadeCases(const Options& options);
std::vector<Case> CodecCases(const Options& options);
std::vector<Case> IndexCases(const Options& options);
std::vector<Case> ModelCases(const Options& options);
std::vector<Case> PipelineCases(const Options& options);
std::vector<Case> PoolCases(const Options& options);
std::vector<Case> RanksCases(const Options& options);
std::vector<Case> ServeCases(const Options& options);
std::vector<Case> StreamCases(const Options& options);
std::vector<Case> TierCases(const Options& options);

// The same on a device, which outlives the cases.
std::vector<Case> DeviceAttentionCases(cuda::Backend& backend);
std::vector<Case> DeviceCascadeCases(cuda::Backend& backend);
std::vector<Case> DeviceModelCases(cuda::Backend& backend);
std::vector<Case> DeviceTierCases(cuda::Backend& backend);
/// A request beside one that streams; part of StreamCases.
std::vector<Case> StreamBesideCases(const Options& options);
/// The host's work for a step on a device; part of ModelCases.
std::vector<Case> HostOfStepCases();
/// The host's work for moves of a device; part of TierCases.
std::vector<Case> HostOfMoveCases();

}  // namespace quire::bench

#endif  // QUIRE_BENCH_BENCH_H_

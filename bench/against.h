// Two builds on the same cases, and one build under callgrind.
#ifndef QUIRE_BENCH_AGAINST_H_
#define QUIRE_BENCH_AGAINST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/pairs.h"
#include "bench/slices.h"
#include "quire/error.h"

namespace quire::bench {

/// One case of both builds.
struct Comparison {
  std::string name;
  std::string unit;
  bool less_is_better = false;
  double value = 0;    // ours, of the best slices
  double against = 0;  // the other's, likewise
  double ratio = 0;    // the other's best time / our best time: more than 1 where ours is faster
  double median = 0;   // the same of all pairs
  uint32_t pairs = 0;  // slices of each; 0: no clock was needed
  std::string note;    // why the case could not be compared
};

/// Runs every case that ours has and `wanted` asks for on both workers alternately, in passes.
/// `progress` is called with the case that runs.
/// Errors: what preparing a case of ours returns; kIo a worker has ended
Result<std::vector<Comparison>> Compare(Worker& ours, Worker& other, uint32_t rounds_min,
                                        const std::function<bool(const std::string&)>& wanted,
                                        const std::function<void(const std::string&)>& progress);

/// Counts instructions in a program under callgrind.
///
/// Lifetime: files in a temporary folder, until it ends
class InstructionCounter {
 public:
  /// `worker` is a command line of a worker that CanCount().
  /// Errors: kUnsupported valgrind is not installed, or this build cannot be counted; kIo
  static Result<InstructionCounter> Start(const std::vector<std::string>& worker);
  InstructionCounter(InstructionCounter&&) noexcept = default;
  InstructionCounter& operator=(InstructionCounter&&) = delete;
  ~InstructionCounter();

  /// The instruction set it runs and counts.
  const std::string& target() const { return worker_->target(); }

  /// Instructions of the timed part of one slice of work, after one slice that is not counted.
  /// Errors: those of the case; kUnsupported the case has no slices; kIo
  Result<uint64_t> Count(const std::string& name);

 private:
  InstructionCounter(std::string folder, std::unique_ptr<Worker> worker);

  std::string folder_;
  std::unique_ptr<Worker> worker_;
  uint32_t counts_ = 0;
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_AGAINST_H_

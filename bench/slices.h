// Slices on demand: how one process has another run slices of work, so that two builds can run the
// same case alternately, or one can run under a tool that counts. docs/benchmarks.md has the
// protocol's text.
//
// The worker is `quire bench NAME --slices`. It writes and reads lines of text:
//
//   worker                                   director
//   quire-slices 1 TARGET NAMES              (the protocol, the instruction set, how many cases)
//   NAME                                     (that many lines)
//                                            case NAME
//   timed PLACES less|more AMOUNT UNIT       (as in Timed; then, tab, what a slice does)
//   exact FIGURE less|more UNIT
//   error MESSAGE
//                                            work PLACE
//   seconds SECONDS
//                                            count PLACE
//   counted
//
// It ends when it can read no more. A worker whose first line is not this one is no worker, or of
// another version.
#ifndef QUIRE_BENCH_SLICES_H_
#define QUIRE_BENCH_SLICES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "quire/error.h"

namespace quire::bench {

/// The worker's side, on stdin and stdout.
/// Errors: kInvalidArgument a line it does not know; kIo stdout is closed
Result<void> ServeSlices(const std::vector<Case>& cases, std::string_view target);

/// The director's side: a process that runs slices when it is told to.
///
/// Threads:  one
/// Lifetime: the process ends with it
class Worker {
 public:
  /// The worker's answer about a case.
  struct Prepared {
    bool timed = false;
    bool less_is_better = false;
    uint32_t places = 0;  // timed
    double figure = 0;    // exact: the value; timed: the amount of a round
    std::string unit;
    std::string slice;  // timed
  };

  /// Starts `command` (looked up in PATH) and reads what it can do.
  /// Errors: kIo it cannot be started; kUnsupported it ends, or its first line is another one
  static Result<std::unique_ptr<Worker>> Start(const std::vector<std::string>& command);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  const std::string& target() const { return target_; }
  const std::vector<std::string>& cases() const { return cases_; }

  /// Errors: what preparing it returned there; kIo it has ended
  Result<Prepared> Prepare(const std::string& name);
  /// Seconds of one slice of the case prepared last.
  /// Errors: kIo it has ended
  Result<double> Work(uint32_t place);
  /// The same between StartCounting and StopCounting.
  /// Errors: kIo it has ended
  Result<void> Count(uint32_t place);

 private:
  Worker(std::string name, int pid, int socket);
  Result<void> ReadGreeting();
  Result<std::string> Ask(const std::string& line);
  Result<std::string> ReadLine();

  const std::string name_;
  const int pid_;
  const int socket_;
  std::string unread_;
  std::string target_;
  std::vector<std::string> cases_;
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SLICES_H_

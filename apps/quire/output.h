// What the program writes: what becomes of it when its output cannot be written, and of whatever
// else is thrown; a progress line; arrays for NumPy.
#ifndef QUIRE_APPS_OUTPUT_H_
#define QUIRE_APPS_OUTPUT_H_

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/error.h"

namespace quire::app {

/// To be called once, first. A reader of stdout that goes away becomes a failed write and no
/// signal; no file that is opened later becomes a stream that the caller closed; what a thread
/// throws ends the program as RunToExit would.
void PrepareProcess();

/// Runs the program and returns its exit code. Whatever is thrown ends as one line on stderr and an
/// exit code: 1 where stdout could not be written, 4 where memory or threads ran out. A program
/// that ends well has also got rid of everything it printed; otherwise it did not end well.
int RunToExit(const std::function<int()>& program);

/// Writes to stderr what it can; a stderr that takes nothing changes nothing.
void PrintError(std::string_view text);

/// Hands what was printed so far to its reader.
///
/// Errors: throws std::system_error, which RunToExit catches
void FlushOutput();

// A progress line on stderr for everything a person waits for; silent when stderr is not a
// terminal.

/// "label [#####     ] 50 % (1.2 of 2.4 MB)", redrawn in place and erased at the end.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label)
      : label_(std::move(label)), shown_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(uint64_t done, uint64_t total) {
    if (!shown_ || total == 0) return;
    const auto percent = static_cast<int>(100 * done / total);
    if (percent == percent_) return;
    percent_ = percent;
    PrintError(fmt::format("\r\033[K{} [{:<30}] {} %", label_, std::string(percent * 30 / 100, '#'),
                           percent));
    if (done == total) Clear();
  }

  /// Where the total is not known: "label 12345".
  void Count(uint64_t done) {
    if (!shown_) return;
    percent_ = 0;
    PrintError(fmt::format("\r\033[K{} {}", label_, done));
  }

  void Clear() {
    if (shown_ && percent_ >= 0) PrintError("\r\033[K");
    percent_ = -1;
  }

 private:
  const std::string label_;
  const bool shown_;
  int percent_ = -1;
};

// Arrays in NumPy's file format.

/// Writes float32 values [rows, columns] as a .npy file (version 1.0), whole or not at all.
/// Errors: those of WriteFile
Result<void> WriteNpy(const std::string& path, std::span<const float> values, uint64_t rows,
                      uint64_t columns);

}  // namespace quire::app

#endif  // QUIRE_APPS_OUTPUT_H_

// A progress line on stderr for everything a person waits for; silent when stderr is not a
// terminal.
#ifndef QUIRE_APPS_PROGRESS_H_
#define QUIRE_APPS_PROGRESS_H_

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "apps/quire/output.h"

namespace quire::app {

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

  void Clear() {
    if (shown_ && percent_ >= 0) PrintError("\r\033[K");
    percent_ = -1;
  }

 private:
  const std::string label_;
  const bool shown_;
  int percent_ = -1;
};

}  // namespace quire::app

#endif  // QUIRE_APPS_PROGRESS_H_

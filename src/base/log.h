// Log lines on stderr, so that stdout carries results only. Never log a key, a token's text or a
// credential: name the object by its id.
#ifndef QUIRE_BASE_LOG_H_
#define QUIRE_BASE_LOG_H_

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace quire {

/// Below this a line is dropped. What the variable QUIRE_LOG names: trace, debug, info, warn, error
/// or off; else warn.
enum class LogLevel { kDebug, kWarn };

namespace internal {
bool LogEnabled(LogLevel level);
void WriteLog(LogLevel level, std::string_view message);
}  // namespace internal

/// LogWarn("slot {} freed", 7) writes one line: time, level, message. The text is made only when
/// the level is enabled. Newlines in the message are the caller's mistake to avoid.
///
/// Threads: any thread; takes the log's own lock, below which nothing is taken
template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (!internal::LogEnabled(level)) return;
  internal::WriteLog(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarn(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarn, format, std::forward<Args>(args)...);
}

}  // namespace quire

#endif  // QUIRE_BASE_LOG_H_

// Log lines on stderr, so that stdout carries results only. Never log a key, a token's text or a
// credential: name the object by its id.
#ifndef QUIRE_BASE_LOG_H_
#define QUIRE_BASE_LOG_H_

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace quire {

enum class LogLevel : uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };

/// The level a name stands for: trace, debug, info, warn, error, off.
std::optional<LogLevel> ParseLogLevel(std::string_view name);

/// Lines below the level are dropped. At start it is what the variable QUIRE_LOG names, else warn.
///
/// Threads: any thread
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

/// Writes one line: time, level, message. Newlines in the message are the caller's mistake to
/// avoid.
///
/// Threads: any thread; takes the log's own lock, below which nothing is taken
void WriteLog(LogLevel level, std::string_view message);

/// LogInfo("slot {} freed", 7): the text is only made when the level is enabled.
template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) WriteLog(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarn(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace quire

#endif  // QUIRE_BASE_LOG_H_

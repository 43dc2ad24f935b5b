#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

namespace quire {
namespace {

struct LevelRow {
  std::string_view name;
  LogLevel level;
  spdlog::level::level_enum spdlog_level;
};

constexpr std::array<LevelRow, 6> kLevels = {{
    {"trace", LogLevel::kTrace, spdlog::level::trace},
    {"debug", LogLevel::kDebug, spdlog::level::debug},
    {"info", LogLevel::kInfo, spdlog::level::info},
    {"warn", LogLevel::kWarn, spdlog::level::warn},
    {"error", LogLevel::kError, spdlog::level::err},
    {"off", LogLevel::kOff, spdlog::level::off},
}};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  return kLevels[static_cast<size_t>(level)].spdlog_level;
}

// A logger of our own, not spdlog's registry, which an embedding program may use for itself. It is
// never destroyed: threads may log while the process ends.
spdlog::logger& Logger() {
  static spdlog::logger* const own = [] {
    auto* logger =
        new spdlog::logger("quire", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    logger->flush_on(spdlog::level::warn);
    const char* variable = std::getenv("QUIRE_LOG");
    const std::string_view name = variable == nullptr ? "warn" : variable;
    const std::optional<LogLevel> level = ParseLogLevel(name);
    logger->set_level(ToSpdlog(level.value_or(LogLevel::kWarn)));
    if (!level) logger->warn("QUIRE_LOG={}: not one of trace debug info warn error off", name);
    return logger;
  }();
  return *own;
}

}  // namespace

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  for (const LevelRow& row : kLevels) {
    if (row.name == name) return row.level;
  }
  return std::nullopt;
}

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && Logger().should_log(ToSpdlog(level));
}

void WriteLog(LogLevel level, std::string_view message) {
  if (level == LogLevel::kOff) return;
  Logger().log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace quire

#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace quire::internal {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  return level == LogLevel::kDebug ? spdlog::level::debug : spdlog::level::warn;
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
    const std::string name = variable == nullptr ? "warn" : variable;
    const auto level = spdlog::level::from_str(name);
    const bool known = level != spdlog::level::off || name == "off";  // off: also of what it is not
    logger->set_level(known ? level : spdlog::level::warn);
    if (!known) logger->warn("QUIRE_LOG={}: not one of trace debug info warn error off", name);
    return logger;
  }();
  return *own;
}

}  // namespace

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void WriteLog(LogLevel level, std::string_view message) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace quire::internal

#include "serve/http/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>

#include "env/file.h"

namespace quire::serve::http {

namespace {

constexpr uint64_t kProcBytesMax = 1 << 20;

/// The field of /proc/self/stat by its number there (proc(5)); the program's name, which may hold
/// anything, ends with the last ')'.
double StatField(const std::string& stat, int number) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = 2; i < number; ++i) fields >> field;
  return std::strtod(field.c_str(), nullptr);
}

double BootUnixSeconds() {
  const auto stat = ReadFile("/proc/stat", kProcBytesMax);
  const size_t at = stat ? stat->find("btime ") : std::string::npos;
  return at == std::string::npos ? 0 : std::strtod(stat->c_str() + at + 6, nullptr);
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  if (const auto stat = ReadFile("/proc/self/stat", kProcBytesMax)) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    stats.virtual_bytes = static_cast<uint64_t>(StatField(*stat, 23));
    stats.resident_bytes =
        static_cast<uint64_t>(StatField(*stat, 24)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    static const double boot_s = BootUnixSeconds();
    stats.start_unix_seconds = boot_s + StatField(*stat, 22) / ticks;
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    stats.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  std::error_code error;
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end; !error && each != end;
       each.increment(error)) {
    ++stats.open_descriptors;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.descriptors_max = limit.rlim_cur;
  return stats;
}

}  // namespace quire::serve::http

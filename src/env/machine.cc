#include "env/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "env/file.h"

namespace quire {
namespace {

constexpr uint64_t kLastLevelFallback = 32ull << 20;
constexpr uint64_t kSecondLevelFallback = 512ull << 10;

// "512K" or "32M", as sysfs writes them; 0 when it is anything else.
uint64_t ParseSysfsBytes(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest == end) return 0;
  switch (*rest) {
    case 'K': return number << 10;
    case 'M': return number << 20;
    case 'G': return number << 30;
    default: return 0;
  }
}

// Bytes of the largest cache of data of the first CPU, of this level unless it is empty; 0 when the
// system does not say. glibc's sysconf divides by guesses about sharing on some CPUs and knows
// nothing on others; sysfs has what the CPU itself reports.
uint64_t LargestCache(std::string_view level) {
  uint64_t largest_bytes = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string cache =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const Result<std::string> its_level = ReadFile(cache + "level", 64);
    const Result<std::string> type = ReadFile(cache + "type", 64);
    const Result<std::string> bytes = ReadFile(cache + "size", 64);
    if (!its_level || !type || !bytes || type->starts_with("Instruction")) continue;
    if (!its_level->starts_with(level)) continue;
    largest_bytes = std::max(largest_bytes, ParseSysfsBytes(*bytes));
  }
  return largest_bytes;
}

}  // namespace

uint64_t LastLevelCacheBytes() {
  const uint64_t bytes = LargestCache("");
  return bytes != 0 ? bytes : kLastLevelFallback;
}

uint64_t SecondLevelCacheBytes() {
  const uint64_t bytes = LargestCache("2");
  return bytes != 0 ? bytes : kSecondLevelFallback;
}

Result<uint64_t> ResidentBytes() {
  constexpr std::string_view kPath = "/proc/self/statm";  // "total resident shared ...", in pages
  QUIRE_ASSIGN(const std::string text, ReadFile(std::string(kPath), 4096));
  const size_t space = text.find(' ');
  uint64_t pages = 0;
  if (space == std::string::npos ||
      std::from_chars(text.data() + space + 1, text.data() + text.size(), pages).ec !=
          std::errc()) {
    return Fail(ErrorCode::kIo, std::string(kPath) + ": unexpected contents");
  }
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void StepBackBehindComputation() {
  constexpr int kNice = 10;
  if (getpriority(PRIO_PROCESS, 0) < kNice) (void)setpriority(PRIO_PROCESS, 0, kNice);
}

}  // namespace quire

#include "env/process_stats.h"

#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

#include "env/file.h"

namespace quire {

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

}  // namespace quire

#include "apps/quire/date.h"

#include <array>
#include <ctime>

namespace quire::app {

std::string DateNow(const std::string& format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 256> text{};
  const size_t bytes = std::strftime(text.data(), text.size(), format.c_str(), &local);
  return {text.data(), bytes};
}

}  // namespace quire::app

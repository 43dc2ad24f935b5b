// Any bytes are a generation_config.json within its promises, or an error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/generation_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const auto config = quire::model::GenerationConfig::Parse(text, "input");
  if (!config) return 0;
  QUIRE_CHECK(std::isfinite(config->temperature) && config->temperature >= 0);
  QUIRE_CHECK(config->top_p > 0 && config->top_p <= 1);
  return 0;
}

// Any bytes are a value or an error, and a value survives being printed and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  if (const auto value = quire::ParseJson(text, "input")) {
    QUIRE_CHECK(quire::ParseJson(value->dump(), "output") == *value);
  }
  return 0;
}

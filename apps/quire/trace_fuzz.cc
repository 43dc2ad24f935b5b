// Any bytes are a trace or an error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "apps/quire/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  (void)quire::app::ParseTrace({reinterpret_cast<const char*>(data), bytes}, "input");
  return 0;
}

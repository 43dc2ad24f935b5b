// Any bytes are an adapter's config and its tensors, or an error: the first line is the config.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/adapter.h"
#include "model/random_model.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const size_t end = std::min(text.find('\n'), text.size());
  const auto config = quire::model::ParseAdapterConfig(text.substr(0, end), "input");
  if (!config) return 0;
  const std::string_view rest = text.substr(std::min(end + 1, text.size()));
  const int memory = memfd_create("adapter_fuzz", 0);
  QUIRE_CHECK(memory >= 0 &&
              write(memory, rest.data(), rest.size()) == static_cast<ssize_t>(rest.size()));
  const auto file = quire::model::Safetensors::Open("/proc/self/fd/" + std::to_string(memory));
  if (file) {
    const auto adapter = quire::model::Adapter::Create(*config, *file, quire::model::SmallConfig());
    if (adapter) QUIRE_CHECK((*adapter)->modules() > 0);
  }
  close(memory);
  return 0;
}

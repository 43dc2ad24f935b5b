// Any bytes are a file whose tensors can be read, or an error; also when the file is cut while it
// is open.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/safetensors.h"

namespace {

void ReadAll(const quire::model::Safetensors& file, uint64_t bytes) {
  std::vector<std::byte> out;
  for (const auto& tensor : file.tensors()) {
    QUIRE_CHECK(tensor.bytes <= bytes);
    out.resize(tensor.bytes);
    (void)file.Read(tensor, 0, out);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const int memory = memfd_create("safetensors_fuzz", 0);
  QUIRE_CHECK(memory >= 0 && write(memory, data, bytes) == static_cast<ssize_t>(bytes));
  const auto file = quire::model::Safetensors::Open("/proc/self/fd/" + std::to_string(memory));
  if (file) {
    ReadAll(*file, bytes);
    QUIRE_CHECK(ftruncate(memory, static_cast<off_t>(bytes / 2)) == 0);
    ReadAll(*file, bytes);
  }
  close(memory);
  return 0;
}

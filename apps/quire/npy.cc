#include "apps/quire/npy.h"

#include <fmt/format.h>

#include "base/bits.h"
#include "env/file.h"

namespace quire::app {

Result<void> WriteNpy(const std::string& path, std::span<const float> values, uint64_t rows,
                      uint64_t columns) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic (6), version (2) and length (2) come first; the data begins at a multiple of 64.
  constexpr size_t kPreamble = 10;
  header.resize(RoundUp(kPreamble + header.size() + 1, 64) - kPreamble - 1, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return WriteFile(path, file);
}

}  // namespace quire::app

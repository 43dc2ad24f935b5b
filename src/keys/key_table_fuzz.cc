// Any bytes are a table of wrapped keys or are refused, and what is accepted is written as it was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "keys/key_table.h"

namespace {

// Without the right checksum no input gets far: it is made right when the first byte says so.
void Reseal(std::span<std::byte> bytes) {
  if (bytes.size() < 64) return;
  uint32_t wrapped = 0;
  uint32_t keys = 0;
  std::memcpy(&wrapped, &bytes[28], 4);
  std::memcpy(&keys, &bytes[32], 4);
  const uint64_t end = 64 + (uint64_t{wrapped} + 7) / 8 * 8 + uint64_t{keys} * 104;
  if (end > bytes.size()) return;
  const uint32_t crc = quire::Crc32c(bytes.first(end).subspan(16));
  std::memcpy(&bytes[12], &crc, 4);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  if (count == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin + 1, begin + count);
  if ((data[0] & 1) != 0) Reseal(bytes);
  const auto table = quire::keys::DecodeKeys(bytes);
  if (!table) return 0;
  const auto again = quire::keys::DecodeKeys(quire::keys::EncodeKeys(*table));
  QUIRE_CHECK(again && *again == *table);
  return 0;
}

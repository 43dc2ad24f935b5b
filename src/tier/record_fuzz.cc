// Any bytes are a summary or a reason, and what is accepted can be walked without leaving them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tier/record.h"

namespace {

using quire::tier::kHeaderBytesMax;

// Without the right checksums no input gets far: they are made right when the first byte says so.
void Reseal(std::span<std::byte> bytes) {
  if (bytes.size() < 256) return;
  uint32_t crc = quire::Crc32c(bytes.first(12));
  std::memcpy(&bytes[12], &crc, 4);
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, &bytes[236], 4);
  if (header_bytes < 256 || header_bytes > bytes.size()) return;
  crc = 0;
  std::memcpy(&bytes[252], &crc, 4);
  crc = quire::Crc32c(bytes.first(header_bytes));
  std::memcpy(&bytes[252], &crc, 4);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  if (count == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  // Its own memory: aligned, and its end is guarded.
  std::vector<std::byte> bytes(begin + 1, begin + count);
  if ((data[0] & 1) != 0) Reseal(bytes);
  const auto summary = quire::tier::InspectHeader(bytes);
  if (!summary) return 0;
  QUIRE_CHECK(summary->header_bytes <= bytes.size() && summary->header_bytes <= kHeaderBytesMax);
  const auto sections = quire::tier::StoredSections(bytes);
  QUIRE_CHECK(sections.size() == summary->section_count);
  quire::tier::SectionChecker checker(sections, 0);
  checker.Feed(std::span(bytes).subspan(summary->header_bytes));
  for (const auto& section : sections) {
    QUIRE_CHECK(section.offset + section.bytes <= summary->payload_bytes);
  }
  return 0;
}

#include "tier/epochs.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace quire::tier {
namespace {

constexpr std::array<char, 8> kMagic = {'Q', 'U', 'I', 'R', 'E', 'E', 'P', 'O'};

struct FileHeader {
  std::array<char, 8> magic;
  uint32_t format;  // 1
  uint32_t crc;     // of the header with this field as zero, and of the entries
  uint64_t version;
  uint64_t count;
};
static_assert(sizeof(FileHeader) == 32);

struct FileEntry {
  PublisherId publisher;
  uint64_t epoch;
};
static_assert(sizeof(FileEntry) == 24);

uint32_t CrcOf(FileHeader header, std::span<const std::byte> entries) {
  header.crc = 0;
  return Crc32c(entries, Crc32c(std::as_bytes(std::span(&header, 1))));
}

}  // namespace

uint64_t EpochTable::EpochOf(const PublisherId& publisher) const {
  const auto found = epochs.find(publisher);
  return found == epochs.end() ? 0 : found->second;
}

uint64_t EpochBytesMax() {
  return kEpochNames.size() * (sizeof(FileHeader) + kEpochPublishersMax * sizeof(FileEntry));
}

std::vector<std::byte> EncodeEpochs(const EpochTable& table) {
  std::vector<FileEntry> entries;
  for (const auto& [publisher, epoch] : table.epochs) entries.push_back({publisher, epoch});
  FileHeader header = {
      .magic = kMagic, .format = 1, .crc = 0, .version = table.version, .count = entries.size()};
  const auto entry_bytes = std::as_bytes(std::span(entries));
  header.crc = CrcOf(header, entry_bytes);
  std::vector<std::byte> bytes(sizeof(header) + entry_bytes.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::ranges::copy(entry_bytes, bytes.begin() + sizeof(header));
  return bytes;
}

std::optional<EpochTable> DecodeEpochs(std::span<const std::byte> bytes) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  if (header.magic != kMagic || header.format != 1) return std::nullopt;
  // A file that shrank keeps the rest of a longer table behind it.
  if (header.count > bytes.size() / sizeof(FileEntry)) return std::nullopt;
  bytes = bytes.first(header.count * sizeof(FileEntry));
  if (header.crc != CrcOf(header, bytes)) return std::nullopt;
  EpochTable table = {.version = header.version};
  for (uint64_t i = 0; i < header.count; ++i) {
    FileEntry entry;
    std::memcpy(&entry, bytes.data() + i * sizeof(entry), sizeof(entry));
    table.epochs[entry.publisher] = entry.epoch;
  }
  return table;
}

}  // namespace quire::tier

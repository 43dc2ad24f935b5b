#include "keys/key_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bits.h"
#include "base/hash.h"
#include "base/log.h"

namespace quire::keys {
namespace {

// Numbers are little-endian on disk, and read in place.
static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'Q', 'U', 'I', 'R', 'E', 'K', 'E', 'Y'};
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kFileBytesMax = uint64_t{64} << 20;

struct Head {
  std::array<char, 8> magic;
  uint32_t format;
  uint32_t crc;  // of everything behind this field
  uint64_t version;
  uint32_t kind;
  uint32_t wrapped_bytes;
  uint32_t keys;
  uint32_t next_number;
  KeyId id;
  std::array<std::byte, 16> check;
};
static_assert(sizeof(Head) == 64);

// Behind it what is wrapped, padded to 8 bytes, then the keys.
struct StoredKey {
  OwnerId owner;
  uint32_t number;
  uint32_t reserved;
  uint64_t until;
  std::array<std::byte, kKeyBytes + kBoxBytes> wrapped;
};
static_assert(sizeof(StoredKey) == 104);

constexpr size_t kCrcEnd = offsetof(Head, crc) + sizeof(uint32_t);

uint64_t TableBytes(uint64_t wrapped_bytes, uint64_t keys) {
  return sizeof(Head) + RoundUp(wrapped_bytes, 8) + keys * sizeof(StoredKey);
}

std::string PathOf(const std::string& directory, size_t copy) {
  return fmt::format("{}/{}", directory, kKeyNames[copy]);
}

}  // namespace

uint64_t KeyFileBytesMax(uint64_t keys) {
  return kKeyNames.size() * RoundUp(TableBytes(kWrappedBytesMax, keys), kPageBytes);
}

uint64_t KeysMax(uint64_t bytes_cap) { return std::clamp<uint64_t>(bytes_cap >> 16, 64, 65'536); }

std::vector<std::byte> EncodeKeys(const KeyTable& table) {
  std::vector<std::byte> bytes(TableBytes(table.wrapped.size(), table.keys.size()));
  Head head = {.magic = kMagic,
               .format = kKeyTableVersion,
               .crc = 0,
               .version = table.version,
               .kind = static_cast<uint32_t>(table.kind),
               .wrapped_bytes = static_cast<uint32_t>(table.wrapped.size()),
               .keys = static_cast<uint32_t>(table.keys.size()),
               .next_number = table.next_number,
               .id = table.id,
               .check = table.check};
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::ranges::copy(table.wrapped, bytes.begin() + sizeof(head));
  std::byte* to = bytes.data() + sizeof(head) + RoundUp(table.wrapped.size(), 8);
  for (const WrappedKey& key : table.keys) {
    const StoredKey stored = {.owner = key.owner,
                              .number = key.number,
                              .reserved = 0,
                              .until = key.until,
                              .wrapped = key.wrapped};
    std::memcpy(to, &stored, sizeof(stored));
    to += sizeof(stored);
  }
  head.crc = Crc32c(std::span(bytes).subspan(kCrcEnd));
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes;
}

Result<KeyTable> DecodeKeys(std::span<const std::byte> bytes) {
  const auto corrupt = [] { return Fail(ErrorCode::kCorrupt, "no table of keys"); };
  Head head;
  if (bytes.size() < sizeof(head)) return corrupt();
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kMagic) return corrupt();
  if (head.format > kKeyTableVersion) {
    return Fail(ErrorCode::kUnsupported, "a newer version wrote the table of keys");
  }
  if (head.wrapped_bytes > kWrappedBytesMax) return corrupt();
  const uint64_t table_bytes = TableBytes(head.wrapped_bytes, head.keys);
  if (table_bytes > bytes.size()) return corrupt();
  if (head.crc != Crc32c(bytes.first(table_bytes).subspan(kCrcEnd))) return corrupt();
  if (head.format != kKeyTableVersion) return corrupt();
  if (head.kind != static_cast<uint32_t>(WrapKind::kKey) &&
      head.kind != static_cast<uint32_t>(WrapKind::kCommand)) {
    return corrupt();
  }
  KeyTable table = {.version = head.version,
                    .kind = static_cast<WrapKind>(head.kind),
                    .id = head.id,
                    .check = head.check,
                    .next_number = head.next_number};
  const auto wrapped = bytes.subspan(sizeof(head), head.wrapped_bytes);
  table.wrapped.assign(wrapped.begin(), wrapped.end());
  const std::byte* from = bytes.data() + sizeof(head) + RoundUp(uint64_t{head.wrapped_bytes}, 8);
  for (uint32_t i = 0; i < head.keys; ++i) {
    StoredKey stored;
    std::memcpy(&stored, from + i * sizeof(stored), sizeof(stored));
    table.keys.push_back({.owner = stored.owner,
                          .number = stored.number,
                          .until = stored.until,
                          .wrapped = stored.wrapped});
  }
  return table;
}

const KeyTable* KeyCopies::newest() const {
  const KeyTable* best = nullptr;
  for (const auto& table : tables) {
    if (table && (best == nullptr || table->version > best->version)) best = &*table;
  }
  return best;
}

uint64_t KeyCopies::damaged() const {
  const KeyTable* const best = newest();
  uint64_t damaged = 0;
  for (const auto& table : tables) damaged += table && *table == *best ? 0 : 1;
  return damaged;
}

KeyCopies ReadKeys(Files& files, const std::string& directory) {
  KeyCopies copies;
  for (size_t copy = 0; copy < kKeyNames.size(); ++copy) {
    const auto file = files.Open(PathOf(directory, copy), {.read_only = true});
    copies.there[copy] = file || file.error().code != ErrorCode::kNotFound;
    if (!file) continue;
    const uint64_t length = files.Length(*file).value_or(0);
    std::vector<std::byte> bytes(std::min(length, kFileBytesMax));
    const auto got = files.ReadAt(*file, 0, bytes);
    files.Close(*file);
    if (!got) continue;
    auto table = DecodeKeys(std::span(bytes).first(*got));
    copies.newer |= !table && table.error().code == ErrorCode::kUnsupported;
    if (table) copies.tables[copy] = *std::move(table);
  }
  return copies;
}

namespace {

Result<void> WriteOver(Files& files, const std::string& path, std::span<const std::byte> bytes) {
  QUIRE_ASSIGN(const FileId file, files.Open(path, {.create = true}));
  const auto written = [&]() -> Result<void> {
    QUIRE_ASSIGN(const uint64_t length, files.Length(file));
    // Zeros over the rest of what was there.
    std::vector<std::byte> all(bytes.begin(), bytes.end());
    all.resize(RoundUp(std::max<uint64_t>(length, bytes.size()), kPageBytes));
    QUIRE_TRY(files.WriteAt(file, 0, all));
    return files.Sync(file);
  }();
  files.Close(file);
  return written;
}

}  // namespace

Result<void> WriteKeys(Files& files, const std::string& directory, size_t copy,
                       const KeyTable& table) {
  const std::string path = PathOf(directory, copy);
  const std::vector<std::byte> bytes = EncodeKeys(table);
  auto written = WriteOver(files, path, bytes);
  if (!written && written.error().code != ErrorCode::kNoSpace) {
    LogWarn(
        "{}: {}; a new file takes its place, and what it held stays where the disk cannot be "
        "written",
        path, written.error().message);
    static_cast<void>(files.Remove(path));
    written = WriteOver(files, path, bytes);
  }
  QUIRE_TRY(written);
  return files.SyncDirectory(directory);
}

}  // namespace quire::keys

#include "tier/epochs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "tier/store_files.h"

namespace quire::tier {
namespace {

constexpr std::array<char, 8> kMagic = {'Q', 'U', 'I', 'R', 'E', 'E', 'P', 'O'};
constexpr uint32_t kFormat = 2;
constexpr uint64_t kChangesMin = 256;                  // before a new table replaces a file
constexpr uint64_t kFileBytesMax = uint64_t{1} << 32;  // of one that is read
constexpr uint64_t kReadBytes = uint64_t{1} << 20;     // at a time

struct FileHeader {
  std::array<char, 8> magic;
  uint32_t format;
  uint32_t crc;  // of the header with this field as zero, and of the entries
  uint64_t version;
  uint64_t count;
};
static_assert(sizeof(FileHeader) == 32);

struct FileEntry {
  PublisherId publisher;
  uint64_t epoch;
};
static_assert(sizeof(FileEntry) == 24);

struct FileChange {
  PublisherId publisher;
  uint64_t epoch;
  uint64_t version;
  uint32_t crc;  // goes on from the one before it, of this with the field as zero
  uint32_t zero;
};
static_assert(sizeof(FileChange) == 40);

uint32_t CrcOf(FileHeader header, std::span<const std::byte> entries) {
  header.crc = 0;
  return Crc32c(entries, Crc32c(std::as_bytes(std::span(&header, 1))));
}

uint32_t CrcOf(FileChange change, uint32_t before) {
  change.crc = 0;
  return Crc32c(std::as_bytes(std::span(&change, 1)), before);
}

void DecodeChanges(std::span<const std::byte> bytes, EpochImage& image) {
  FileChange change;
  for (; bytes.size() >= sizeof(change); bytes = bytes.subspan(sizeof(change))) {
    std::memcpy(&change, bytes.data(), sizeof(change));
    const bool follows =
        change.version == image.table.version + 1 && change.crc == CrcOf(change, image.checksum);
    if (!follows) break;
    image.table.Raise({.publisher = change.publisher, .epoch = change.epoch});
    image.checksum = change.crc;
    image.bytes += sizeof(change);
    ++image.changes;
  }
  image.is_whole = bytes.empty();
}

}  // namespace

uint64_t EpochTable::EpochOf(const PublisherId& publisher) const {
  const auto found = epochs.find(publisher);
  return found == epochs.end() ? 0 : found->second;
}

void EpochTable::Raise(const EpochChange& change) {
  uint64_t& epoch = epochs[change.publisher];
  epoch = std::max(epoch, change.epoch);
  ++version;
}

std::vector<std::byte> EncodeEpochs(const EpochTable& table) {
  std::vector<FileEntry> entries;
  entries.reserve(table.epochs.size());
  for (const auto& [publisher, epoch] : table.epochs) entries.push_back({publisher, epoch});
  FileHeader header = {.magic = kMagic,
                       .format = kFormat,
                       .crc = 0,
                       .version = table.version,
                       .count = entries.size()};
  const auto entry_bytes = std::as_bytes(std::span(entries));
  header.crc = CrcOf(header, entry_bytes);
  std::vector<std::byte> bytes(sizeof(header) + entry_bytes.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::ranges::copy(entry_bytes, bytes.begin() + sizeof(header));
  return bytes;
}

uint32_t EpochChecksum(std::span<const std::byte> table) {
  FileHeader header;
  std::memcpy(&header, table.first(sizeof(header)).data(), sizeof(header));
  return header.crc;
}

std::vector<std::byte> EncodeEpochChanges(std::span<const EpochChange> changes, uint64_t version,
                                          uint32_t& checksum) {
  std::vector<std::byte> bytes(changes.size() * sizeof(FileChange));
  for (size_t i = 0; i < changes.size(); ++i) {
    FileChange change = {.publisher = changes[i].publisher,
                         .epoch = changes[i].epoch,
                         .version = ++version,
                         .crc = 0,
                         .zero = 0};
    checksum = change.crc = CrcOf(change, checksum);
    std::memcpy(bytes.data() + i * sizeof(change), &change, sizeof(change));
  }
  return bytes;
}

std::optional<EpochImage> DecodeEpochs(std::span<const std::byte> bytes) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  if (header.magic != kMagic || header.format == 0 || header.format > kFormat) return std::nullopt;
  if (header.count > bytes.size() / sizeof(FileEntry)) return std::nullopt;
  const auto entries = bytes.first(header.count * sizeof(FileEntry));
  if (header.crc != CrcOf(header, entries)) return std::nullopt;
  EpochImage image = {.table = {.version = header.version},
                      .bytes = sizeof(header) + entries.size(),
                      .checksum = header.crc,
                      .is_old = header.format == 1};
  for (uint64_t i = 0; i < header.count; ++i) {
    FileEntry entry;
    std::memcpy(&entry, entries.data() + i * sizeof(entry), sizeof(entry));
    image.table.epochs[entry.publisher] = entry.epoch;
  }
  // A file of format 1 that shrank keeps the rest of a longer table behind it.
  if (!image.is_old) DecodeChanges(bytes.subspan(entries.size()), image);
  return image;
}

bool IsLong(uint64_t changes, uint64_t publishers) {
  return changes > kChangesMin + publishers / 2;
}

uint64_t EpochBytesMax(uint64_t publishers) {
  const uint64_t table = sizeof(FileHeader) + publishers * sizeof(FileEntry);
  const uint64_t changes = (kChangesMin + publishers / 2) * sizeof(FileChange);
  return kEpochNames.size() * (table + changes) + table;
}

namespace {

Result<std::vector<std::byte>> ReadWhole(Files& files, FileId file) {
  std::vector<std::byte> bytes;
  while (bytes.size() < kFileBytesMax) {
    const size_t begin = bytes.size();
    bytes.resize(begin + kReadBytes);
    QUIRE_ASSIGN(const uint64_t got, files.ReadAt(file, begin, std::span(bytes).subspan(begin)));
    bytes.resize(begin + got);
    if (got < kReadBytes) return bytes;
  }
  return Fail(ErrorCode::kCorrupt, "a file of epochs that no store writes");
}

std::optional<EpochImage> ReadImage(Files& files, const std::string& path) {
  const auto file = files.Open(path, {.read_only = true});
  if (!file) return std::nullopt;
  const auto bytes = ReadWhole(files, *file);
  files.Close(*file);
  return bytes ? DecodeEpochs(*bytes) : std::nullopt;
}

}  // namespace

EpochCopies ReadEpochs(Files& files, const std::string& directory) {
  EpochCopies read;
  bool is_any_whole = false;
  for (size_t i = 0; i < kEpochNames.size(); ++i) {
    const std::string path = fmt::format("{}/{}", directory, kEpochNames[i]);
    read.images[i] = Patiently([&] { return ReadImage(files, path); });
    const auto& image = read.images[i];
    if (!image) continue;
    is_any_whole = is_any_whole || image->is_whole;
    if (!read.table || image->table.version > read.table->version) read.table = image->table;
  }
  // A change that was torn was not confirmed. But only beside a whole copy it is certain that it
  // was torn, and not damaged later.
  if (!is_any_whole) read.table.reset();
  return read;
}

Result<FileId> ReplaceEpochFile(Files& files, const std::string& directory, size_t copy,
                                std::span<const std::byte> bytes) {
  const std::string path = fmt::format("{}/{}", directory, kEpochNames[copy]);
  const std::string beside = path + ".new";
  QUIRE_ASSIGN(const FileId file, files.Open(beside, {.create = true}));
  const auto put = [&]() -> Result<void> {
    QUIRE_TRY(files.Resize(file, 0));  // a crash may have left it
    QUIRE_TRY(files.WriteAt(file, 0, bytes));
    QUIRE_TRY(files.Sync(file));
    if (const auto renamed = files.Rename(beside, path); !renamed) {
      // A directory, say, gives way to no file.
      if (const auto there = files.Open(path, {.read_only = true})) {
        files.Close(*there);
        return renamed;
      }
      QUIRE_TRY(files.Rename(path, path + ".bad"));
      QUIRE_TRY(files.Rename(beside, path));
    }
    return files.SyncDirectory(directory);
  };
  if (auto done = put(); !done) {
    files.Close(file);
    static_cast<void>(files.Remove(beside));
    return std::unexpected(std::move(done).error());
  }
  return file;
}

void ServedEpochs::Start(EpochTable saved) {
  MutexLock lock(mutex_);
  kept_ = std::move(saved);
  saved_version_ = kept_.version;
}

uint64_t ServedEpochs::Of(const PublisherId& publisher) const {
  MutexLock lock(mutex_);
  const auto found = passing_.find(publisher);
  return found == passing_.end() ? kept_.EpochOf(publisher) : found->second;
}

void ServedEpochs::Raise(const EpochChange& change, bool keep) {
  MutexLock lock(mutex_);
  if (!keep) {
    passing_[change.publisher] = change.epoch;
    return;
  }
  passing_.erase(change.publisher);
  kept_.Raise(change);
  unsaved_.push_back(change);
  last_changes_[change.publisher] = kept_.version;
}

void ServedEpochs::Keep(const PublisherId& publisher) {
  if (!IsKept(publisher)) Raise({.publisher = publisher, .epoch = Of(publisher)}, /*keep=*/true);
}

bool ServedEpochs::IsKept(const PublisherId& publisher) const {
  MutexLock lock(mutex_);
  return !passing_.contains(publisher);
}

bool ServedEpochs::IsSaved(const PublisherId& publisher) const {
  return IsKept(publisher) && !last_changes_.contains(publisher);
}

uint64_t ServedEpochs::version() const {
  MutexLock lock(mutex_);
  return kept_.version;
}

uint64_t ServedEpochs::publishers() const {
  MutexLock lock(mutex_);
  return kept_.epochs.size();
}

std::vector<std::byte> ServedEpochs::Encode() const {
  MutexLock lock(mutex_);
  return EncodeEpochs(kept_);
}

std::span<const EpochChange> ServedEpochs::ChangesAfter(uint64_t version) const {
  return std::span(unsaved_).subspan(version - saved_version_);
}

void ServedEpochs::Saved(uint64_t version) {
  unsaved_.erase(unsaved_.begin(),
                 unsaved_.begin() + static_cast<ptrdiff_t>(version - saved_version_));
  saved_version_ = version;
  std::erase_if(last_changes_, [&](const auto& change) { return change.second <= version; });
}

}  // namespace quire::tier

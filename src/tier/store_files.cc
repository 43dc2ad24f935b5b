#include "tier/store_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"
#include "tier/segments.h"
#include "tier/staging.h"

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

namespace {

uint64_t NumberAfter(std::string_view text, std::string_view name) {
  const std::string wanted = fmt::format("\"{}\":", name);
  const size_t at = text.find(wanted);
  if (at == std::string_view::npos) return 0;
  const std::string_view rest = text.substr(at + wanted.size());
  uint64_t number = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return number;
}

constexpr uint64_t kLockCopyBytes = 512;  // a sector is written whole or not at all

std::string EncodeLockText(const LockText& text) {
  std::string body = fmt::format("{{\"opens\":{},\"bytes_cap\":{},\"segment_bytes\":{},",
                                 text.opens, text.bytes_cap, text.segment_bytes);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(body)));
  body = fmt::format("{}\"crc\":{}}}", body, crc);
  body.resize(kLockCopyBytes - 1, ' ');
  return body + "\n";
}

LockText DecodeLockText(std::string_view text) {
  const LockText read = {.opens = NumberAfter(text, "opens"),
                         .bytes_cap = NumberAfter(text, "bytes_cap"),
                         .segment_bytes = NumberAfter(text, "segment_bytes")};
  return EncodeLockText(read) == text ? read : LockText{};
}

}  // namespace

LockText ReadLockText(Files& files, const std::string& directory) {
  const auto file = files.Open(fmt::format("{}/{}", directory, kLockName), {.read_only = true});
  if (!file) return {};
  std::array<std::byte, 2 * kLockCopyBytes> bytes = {};
  const auto got = files.ReadAt(*file, 0, bytes);
  files.Close(*file);
  if (!got) return {};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const LockText first = DecodeLockText(text.substr(0, kLockCopyBytes));
  const LockText second = DecodeLockText(text.substr(kLockCopyBytes));
  return first.opens >= second.opens ? first : second;
}

Result<void> WriteLockText(Files& files, FileId lock, const LockText& text) {
  const std::string bytes = EncodeLockText(text);
  const uint64_t offset = text.opens % 2 * kLockCopyBytes;
  QUIRE_TRY(files.WriteAt(lock, offset, std::as_bytes(std::span(bytes))));
  return files.Sync(lock);
}

Result<std::expected<RecordSummary, RecordMiss>> FirstHeader(Files& files, FileId segment,
                                                             uint32_t number) {
  Staging page(kHeaderBytesMax, 1);
  QUIRE_ASSIGN(uint64_t got, files.ReadAt(segment, 0, page.memory().first(kRecordAlignment)));
  auto summary = InspectHeader(page.memory().first(got));
  if (!summary && summary.error() == RecordMiss::kTruncated) {
    QUIRE_ASSIGN(got, files.ReadAt(segment, 0, page.memory()));
    summary = InspectHeader(page.memory().first(got));
  }
  if (summary && (summary->location.segment != number || summary->location.offset != 0)) {
    summary = std::unexpected(RecordMiss::kOtherLocation);
  }
  return summary;
}

Result<std::optional<EpochTable>> ReadEpochFile(Files& files, FileId file) {
  std::vector<std::byte> bytes(EpochBytesMax() / kEpochNames.size());
  QUIRE_ASSIGN(const uint64_t got, files.ReadAt(file, 0, bytes));
  return DecodeEpochs(std::span(bytes).first(got));
}

Result<void> WriteEpochFile(Files& files, FileId file, const EpochTable& table) {
  QUIRE_TRY(files.WriteAt(file, 0, EncodeEpochs(table)));
  return files.Sync(file);
}

namespace {

// A segment from its front to its end, through memory of a fixed size.
class SegmentReader {
 public:
  SegmentReader(Files& files, FileId file, ScanDepth depth)
      : files_(files),
        file_(file),
        reads_all_(depth == ScanDepth::kPayloads),
        staging_(reads_all_ ? kPayloadBytes : kHeaderBytes, 1) {}

  /// The header at an offset.
  Result<std::expected<RecordSummary, RecordMiss>> At(uint64_t offset) {
    QUIRE_ASSIGN(auto bytes, Window(offset, kRecordAlignment));
    auto summary = InspectHeader(bytes);
    if (summary || summary.error() != RecordMiss::kTruncated) return summary;
    QUIRE_ASSIGN(bytes, Window(offset, kHeaderBytesMax));  // a header of several pages
    return InspectHeader(bytes);
  }
  /// Whether every section of a record, whose header At gave, has its checksum.
  Result<bool> IsWhole(const RecordSummary& record) {
    const uint64_t offset = record.location.offset;
    QUIRE_ASSIGN(const auto header, Window(offset, record.header_bytes));
    // The window moves on while the payload comes.
    const auto stored = StoredSections(header);
    const std::vector<StoredSection> sections(stored.begin(), stored.end());
    SectionChecker checker(sections, 0);
    const uint64_t payload = offset + record.header_bytes;
    for (uint64_t done = 0; done < record.payload_bytes;) {
      QUIRE_ASSIGN(const auto bytes, Window(payload + done, kRecordAlignment));
      if (bytes.size() < kRecordAlignment) return false;
      const uint64_t count =
          std::min(RoundDown(bytes.size(), kRecordAlignment), record.payload_bytes - done);
      checker.Feed(bytes.first(count));
      done += count;
    }
    return checker.Good(0, record.section_count);
  }
  /// Whether anything could be read so far.
  bool has_read() const { return has_read_; }

 private:
  static constexpr uint64_t kHeaderBytes = 2 * kHeaderBytesMax;
  static constexpr uint64_t kPayloadBytes = uint64_t{4} << 20;

  // What memory has from an offset on: at least so many bytes, unless the file ends before them or
  // the disk does not give them back.
  Result<std::span<const std::byte>> Window(uint64_t offset, uint64_t bytes) {
    if (offset < begin_ || offset + bytes > end_) QUIRE_TRY(Load(offset, bytes));
    return staging_.memory().subspan(offset - begin_, end_ - offset);
  }
  // Long records are stepped over; what lies close together is read together. A sector that cannot
  // be read costs the pages on it: around it less is read at a time.
  Result<void> Load(uint64_t offset, uint64_t bytes) {
    const bool is_near = offset >= begin_ && offset - begin_ <= kHeaderBytesMax;
    const uint64_t more = reads_all_ || is_near ? staging_.memory().size() : bytes;
    begin_ = end_ = offset;
    uint64_t tried = ~uint64_t{0};
    for (const uint64_t want : {more, bytes, kRecordAlignment}) {
      if (want >= tried || (want > bytes && offset < careful_until_)) continue;
      tried = want;
      const auto got = files_.ReadAt(file_, offset, staging_.memory().first(want));
      if (!got && got.error().code != ErrorCode::kIo) return std::unexpected(got.error());
      if (got) {
        has_read_ = true;
        end_ = offset + *got;
        return {};
      }
      careful_until_ = std::max(careful_until_, offset + want);
    }
    return {};
  }

  Files& files_;
  const FileId file_;
  const bool reads_all_;
  Staging staging_;
  uint64_t begin_ = 0;  // the part of the file in memory
  uint64_t end_ = 0;
  uint64_t careful_until_ = 0;
  bool has_read_ = false;
};

struct FoundRecord {
  RecordSummary summary{};
  bool is_whole = true;
};

// Of all that was found, what is of the highest generation.
void KeepNewest(SegmentScan& scan, const std::vector<FoundRecord>& found) {
  for (const FoundRecord& record : found) {
    scan.generation = std::max(scan.generation, record.summary.location.generation);
  }
  uint64_t covered = scan.tail;
  for (const auto& [record, is_whole] : found) {
    const uint64_t offset = record.location.offset;
    if (record.location.generation != scan.generation) continue;
    if (offset > covered) scan.gaps.push_back({.offset = covered, .bytes = offset - covered});
    covered = std::max(covered, offset + record.record_bytes());
    if (!is_whole) {
      scan.damaged.push_back(record);
    } else if (!record.is_void) {
      scan.records.push_back(record);
    }
  }
  scan.tail = covered;
}

}  // namespace

Result<SegmentScan> ScanSegment(Files& files, FileId file, uint32_t number, uint64_t begin,
                                uint64_t segment_bytes, ScanDepth depth) {
  SegmentScan scan;
  scan.tail = begin;
  SegmentReader reader(files, file, depth);
  std::vector<FoundRecord> found;
  uint64_t newest = 0;
  for (uint64_t offset = begin; offset < segment_bytes;) {
    QUIRE_ASSIGN(const auto summary, reader.At(offset));
    const bool here = summary && summary->location.segment == number &&
                      summary->location.offset == offset &&
                      summary->record_bytes() <= segment_bytes - offset;
    if (!here) {
      scan.other_versions += !summary && summary.error() == RecordMiss::kOtherVersion ? 1 : 0;
      offset += kRecordAlignment;
      continue;
    }
    // What an older generation says about its length says nothing about what was written over it.
    newest = std::max(newest, summary->location.generation);
    const bool is_new = summary->location.generation == newest;
    found.push_back({.summary = *summary});
    if (is_new && !summary->is_void && depth == ScanDepth::kPayloads) {
      QUIRE_ASSIGN(found.back().is_whole, reader.IsWhole(*summary));
    }
    offset += is_new ? summary->record_bytes() : kRecordAlignment;
  }
  if (begin < segment_bytes && !reader.has_read()) {
    return Fail(ErrorCode::kIo, fmt::format("{}: nothing of it can be read", SegmentName(number)));
  }
  KeepNewest(scan, found);
  return scan;
}

Result<bool> VerifyRecord(Files& files, FileId file, const RecordSummary& record,
                          std::span<std::byte> buffer) {
  Staging header(kHeaderBytesMax, 1);
  QUIRE_ASSIGN(uint64_t got, files.ReadAt(file, record.location.offset, header.memory()));
  const auto again = InspectHeader(header.memory().first(got));
  if (!again || again->location != record.location || again->key != record.key) return false;
  SectionChecker checker(StoredSections(header.memory()), 0);
  const uint64_t payload = record.location.offset + record.header_bytes;
  for (uint64_t done = 0; done < record.payload_bytes; done += got) {
    const uint64_t bytes = std::min<uint64_t>(buffer.size(), record.payload_bytes - done);
    QUIRE_ASSIGN(got, files.ReadAt(file, payload + done, buffer.first(bytes)));
    if (got != bytes) return false;
    checker.Feed(buffer.first(bytes));
  }
  return checker.Good(0, record.section_count);
}

}  // namespace quire::tier

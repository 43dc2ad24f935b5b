#include "tier/store_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"
#include "tier/segments.h"
#include "tier/staging.h"

namespace quire::tier {
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
  const std::string path = fmt::format("{}/{}", directory, kLockName);
  const auto file = Patiently([&] { return files.Open(path, {.read_only = true}); });
  if (!file) return {};
  std::array<std::byte, 2 * kLockCopyBytes> bytes = {};
  const auto got = Patiently([&] { return files.ReadAt(*file, 0, bytes); });
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

namespace {

// A disk that refuses more pages of a segment than this is not asked for all the others.
constexpr uint64_t kUnreadablePagesMax = 256;

// A segment from its front to its end, through memory of a fixed size.
class SegmentReader {
 public:
  SegmentReader(Files& files, FileId file, ScanDepth depth, std::span<std::byte> memory)
      : files_(files), file_(file), reads_all_(depth == ScanDepth::kPayloads), memory_(memory) {}

  /// The header at an offset; nothing where the disk does not give the page.
  std::optional<std::expected<RecordSummary, RecordMiss>> At(uint64_t offset) {
    if (!Load(offset, kRecordAlignment)) return std::nullopt;
    auto summary = InspectHeader(Window(offset));
    if (summary || summary.error() != RecordMiss::kTruncated) return summary;
    if (!Load(offset, kHeaderBytesMax)) return std::nullopt;  // a header of several pages
    return InspectHeader(Window(offset));
  }
  /// Whether the page that At was asked for last holds nothing but zeros.
  bool IsBlank(uint64_t offset) const {
    const auto page = Window(offset).first(std::min(kRecordAlignment, end_ - offset));
    return std::ranges::all_of(page, [](std::byte byte) { return byte == std::byte{0}; });
  }
  /// Whether every section of the record whose header At gave last has its checksum.
  bool IsWhole(const RecordSummary& record) {
    const uint64_t offset = record.location.offset;
    // The window moves on while the payload comes.
    const auto stored = StoredSections(Window(offset));
    const std::vector<StoredSection> sections(stored.begin(), stored.end());
    SectionChecker checker(sections, 0);
    const uint64_t payload = offset + record.header_bytes;
    for (uint64_t done = 0; done < record.payload_bytes;) {
      if (!Load(payload + done, kRecordAlignment)) return false;
      const uint64_t count = std::min(RoundDown(Window(payload + done).size(), kRecordAlignment),
                                      record.payload_bytes - done);
      if (count == 0) return false;  // the file ends
      checker.Feed(Window(payload + done).first(count));
      done += count;
    }
    return checker.Good(0, record.section_count);
  }

 private:
  std::span<const std::byte> Window(uint64_t offset) const {
    return memory_.subspan(offset - begin_, end_ - offset);
  }
  // False: the disk does not give the first page.
  bool Load(uint64_t offset, uint64_t bytes) {
    if (offset >= begin_ && offset + bytes <= end_) return true;
    // Long records are stepped over; what lies close together is read together.
    const bool is_near = offset >= begin_ && offset - begin_ <= kHeaderBytesMax;
    const auto got = Read(offset, reads_all_ || is_near ? memory_.size() : bytes);
    begin_ = offset;
    end_ = offset + got.value_or(0);
    return got.has_value();
  }
  // As much as there is, or lies in front of a page that the disk does not give.
  std::optional<uint64_t> Read(uint64_t offset, uint64_t bytes) {
    const auto whole = files_.ReadAt(file_, offset, memory_.first(bytes));
    if (whole) return *whole;
    for (uint64_t done = 0; done < bytes; done += kRecordAlignment) {
      const auto got = ReadPage(offset + done, memory_.subspan(done, kRecordAlignment));
      if (!got) return done > 0 ? std::optional(done) : std::nullopt;
      if (*got < kRecordAlignment) return done + *got;
    }
    return bytes;
  }
  Result<uint64_t> ReadPage(uint64_t offset, std::span<std::byte> page) {
    // What begins there is given up otherwise, and may be overwritten.
    return Patiently([&] { return files_.ReadAt(file_, offset, page); });
  }

  Files& files_;
  const FileId file_;
  const bool reads_all_;
  const std::span<std::byte> memory_;
  uint64_t begin_ = 0;  // the part of the file in memory
  uint64_t end_ = 0;
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
                                uint64_t segment_bytes, ScanDepth depth,
                                std::span<std::byte> memory) {
  SegmentScan scan;
  scan.tail = scan.blank_begin = begin;
  SegmentReader reader(files, file, depth, memory.first(ScanBytes(depth)));
  std::vector<FoundRecord> found;
  uint64_t newest = 0;
  for (uint64_t offset = begin; offset < segment_bytes;) {
    const auto summary = reader.At(offset);
    if (!summary) {
      scan.unreadable.push_back({.offset = offset, .bytes = kRecordAlignment});
      if (scan.unreadable.size() > kUnreadablePagesMax) {
        return Fail(ErrorCode::kIo, fmt::format("{}: the disk does not give {} pages of it",
                                                SegmentName(number), scan.unreadable.size()));
      }
    }
    if (!summary || !reader.IsBlank(offset)) scan.blank_begin = offset + kRecordAlignment;
    const bool here = summary && *summary && (*summary)->location.segment == number &&
                      (*summary)->location.offset == offset &&
                      (*summary)->record_bytes() <= segment_bytes - offset;
    if (!here) {
      const bool other = summary && !*summary && summary->error() == RecordMiss::kOtherVersion;
      scan.other_versions += other ? 1 : 0;
      offset += kRecordAlignment;
      continue;
    }
    const RecordSummary& record = **summary;
    // What an older generation says about its length says nothing about what was written over it.
    newest = std::max(newest, record.location.generation);
    const bool is_new = record.location.generation == newest;
    const bool checks = is_new && !record.is_void && depth == ScanDepth::kPayloads;
    found.push_back({.summary = record, .is_whole = !checks || reader.IsWhole(record)});
    offset += is_new ? record.record_bytes() : kRecordAlignment;
  }
  KeepNewest(scan, found);
  std::erase_if(scan.unreadable, [&](const Gap& gap) { return gap.offset < scan.tail; });
  return scan;
}

Result<void> Blank(Files& files, FileId file, uint64_t begin, uint64_t bytes) {
  constexpr uint64_t kPieceBytes = 64 << 10;
  Staging zeros(kPieceBytes, 1);
  std::ranges::fill(zeros.memory(), std::byte{0});
  Result<void> first;
  for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
    const uint64_t some = std::min(kPieceBytes, bytes - done);
    const auto written =
        Patiently([&] { return files.WriteAt(file, begin + done, zeros.memory().first(some)); });
    if (first && !written) first = written;
  }
  const auto synced = files.Sync(file);
  return first ? synced : first;
}

Result<void> WriteVoid(Files& files, FileId file, const RecordLocation& location,
                       uint64_t stretch_bytes) {
  QUIRE_TRY(
      Blank(files, file, location.offset + kRecordAlignment, stretch_bytes - kRecordAlignment));
  Staging page(kRecordAlignment, 1);
  EncodeVoid(location, stretch_bytes, page.memory());
  QUIRE_TRY(files.WriteAt(file, location.offset, page.memory()));
  return files.Sync(file);
}

Result<bool> VerifyRecord(Files& files, FileId file, const RecordSummary& record,
                          std::span<std::byte> buffer) {
  // No more than the record has: what is behind it may be on a bad sector.
  Staging header(record.header_bytes, 1);
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

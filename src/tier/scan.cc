#include "tier/scan.h"

#include <algorithm>

#include "base/bits.h"
#include "base/check.h"
#include "tier/staging.h"

namespace quire::tier {
namespace {

// Headers of a segment, one after the other, through memory of a fixed size.
class HeaderReader {
 public:
  HeaderReader(Files& files, FileId file) : files_(files), file_(file), staging_(kBytes, 1) {}

  /// The header at an offset.
  Result<std::expected<RecordSummary, RecordMiss>> At(uint64_t offset) {
    QUIRE_TRY(Load(offset, kRecordAlignment));
    auto summary = InspectHeader(Window(offset));
    if (summary || summary.error() != RecordMiss::kTruncated) return summary;
    QUIRE_TRY(Load(offset, kHeaderBytesMax));  // a header of several pages
    return InspectHeader(Window(offset));
  }

 private:
  // Stepping over what is no header looks at one page after the other: they are read together.
  static constexpr uint64_t kBytes = 2 * kHeaderBytesMax;

  std::span<const std::byte> Window(uint64_t offset) {
    return staging_.memory().subspan(offset - begin_, end_ - offset);
  }
  Result<void> Load(uint64_t offset, uint64_t bytes) {
    if (offset >= begin_ && offset + bytes <= end_) return {};
    // Whole pages: the rest of what is there, or only a header's first page where records are long.
    const bool steps = offset == end_ || offset == begin_ + kRecordAlignment;
    const uint64_t want = steps ? kBytes : bytes;
    QUIRE_ASSIGN(const uint64_t got, files_.ReadAt(file_, offset, staging_.memory().first(want)));
    begin_ = offset;
    end_ = offset + got;
    return {};
  }

  Files& files_;
  FileId file_;
  Staging staging_;
  uint64_t begin_ = 0;  // the part of the file in memory
  uint64_t end_ = 0;
};

// Of all that was found, what is of the highest generation.
void KeepNewest(SegmentScan& scan, const std::vector<RecordSummary>& found) {
  for (const RecordSummary& record : found) {
    scan.generation = std::max(scan.generation, record.location.generation);
  }
  for (const RecordSummary& record : found) {
    if (record.location.generation != scan.generation) continue;
    scan.tail = std::max(scan.tail, record.location.offset + record.record_bytes());
    scan.records.push_back(record);
  }
}

void FindGaps(SegmentScan& scan, uint64_t begin) {
  uint64_t covered = begin;
  for (const RecordSummary& record : scan.records) {
    if (record.location.offset > covered) {
      scan.gaps.push_back({.offset = covered, .bytes = record.location.offset - covered});
    }
    covered = std::max(covered, record.location.offset + record.record_bytes());
  }
  std::erase_if(scan.records, [](const RecordSummary& record) { return record.is_void; });
}

}  // namespace

Result<SegmentScan> ScanSegment(Files& files, FileId file, uint32_t number, uint64_t begin,
                                uint64_t segment_bytes) {
  SegmentScan scan;
  scan.tail = begin;
  HeaderReader reader(files, file);
  std::vector<RecordSummary> found;
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
    found.push_back(*summary);
    // What an older generation says about its length says nothing about what was written over it.
    newest = std::max(newest, summary->location.generation);
    offset += summary->location.generation == newest ? summary->record_bytes() : kRecordAlignment;
  }
  KeepNewest(scan, found);
  FindGaps(scan, begin);
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

// A store's directory: its small files, and looking through its segments for records.
#ifndef QUIRE_TIER_STORE_FILES_H_
#define QUIRE_TIER_STORE_FILES_H_

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "env/files.h"
#include "quire/error.h"
#include "tier/record.h"

namespace quire::tier {

// The small files of a store's directory, for the store and for the tools.

inline constexpr std::string_view kLockName = "LOCK";

/// What a call gives, tried three times: one bad moment of the disk must not cost what lies there.
template <typename Call>
auto Patiently(const Call& call) {
  auto result = call();
  for (int i = 1; !result && i < 3; ++i) result = call();
  return result;
}

/// What the lock file says about the store, in two copies that are written in turn.
struct LockText {
  uint64_t opens = 0;  // how often the store was opened

  uint64_t bytes_cap = 0;
  uint64_t segment_bytes = 0;

  bool operator==(const LockText&) const = default;
};
/// The newest copy that is whole; all zero without one.
LockText ReadLockText(Files& files, const std::string& directory);
/// Writes over the older copy and syncs it.
Result<void> WriteLockText(Files& files, FileId lock, const LockText& text);

/// The first header of a segment, or why there is none.
/// Errors: kIo
Result<std::expected<RecordSummary, RecordMiss>> FirstHeader(Files& files, FileId segment,
                                                             uint32_t number);

// Looking through the segments of a store for records, without any catalogue: for recovery and for
// the tools.

/// A stretch of a segment where a record should be and none is.
struct Gap {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// What a segment holds.
struct SegmentScan {
  std::vector<RecordSummary> records{};  // by ascending offset, of the highest generation
  std::vector<Gap> gaps{};               // before the tail
  std::vector<RecordSummary> damaged{};  // not whole, where payloads are compared
  std::vector<Gap> unreadable{};         // behind the tail: what the disk does not give
  uint64_t generation = 0;               // 0: no record
  uint64_t tail = 0;                     // end of the last record or void
  uint64_t other_versions = 0;           // headers of another format version
  uint64_t blank_begin = 0;              // nothing but zeros from here on, or inside the tail
};

enum class ScanDepth : uint8_t {
  kHeaders,   // payloads of long records are not even read
  kPayloads,  // everything is read, in large requests, and compared with its checksums
};

/// Of the memory that a scan reads through.
constexpr uint64_t ScanBytes(ScanDepth depth) {
  return depth == ScanDepth::kPayloads ? uint64_t{4} << 20 : 2 * kHeaderBytesMax;
}

/// Reads the headers from `begin` on, through `memory` [ScanBytes(depth)]. Records of lower
/// generations are what a reused segment holds behind its tail; they are no records. Pages that
/// cannot be read hold none.
///
/// Errors: kIo more of them than a few bad sectors
Result<SegmentScan> ScanSegment(Files& files, FileId file, uint32_t number, uint64_t begin,
                                uint64_t segment_bytes, ScanDepth depth,
                                std::span<std::byte> memory);

/// Overwrites a stretch of a segment with zeros, and then says that it holds no record. In this
/// order: where that fails, or after a crash in between, what bytes are left still lie where
/// something is missing, so that they are overwritten the next time.
///
/// Errors: kIo, kNoSpace
Result<void> WriteVoid(Files& files, FileId file, const RecordLocation& location,
                       uint64_t stretch_bytes);

/// Zeros over a stretch of a file, as far as the disk takes them. Errors: the first one
Result<void> Blank(Files& files, FileId file, uint64_t begin, uint64_t bytes);

/// Compares every section of a record with its checksum; `buffer` is memory to read through.
///
/// Errors: kIo. False: damaged
Result<bool> VerifyRecord(Files& files, FileId file, const RecordSummary& record,
                          std::span<std::byte> buffer);

}  // namespace quire::tier

#endif  // QUIRE_TIER_STORE_FILES_H_

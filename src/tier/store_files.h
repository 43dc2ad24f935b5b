// A store's directory: its small files, the erase epochs among them, and looking through its
// segments for records.
#ifndef QUIRE_TIER_STORE_FILES_H_
#define QUIRE_TIER_STORE_FILES_H_

#include <array>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "env/files.h"
#include "quire/error.h"
#include "tier/record.h"

namespace quire::tier {

// Erase epochs of publishers, in files that nothing else is rebuilt from and that are rebuilt from
// nothing else. Two copies, written one after the other: a crash damages one of them at most, and
// the higher one that is whole is never older than the last confirmed erasure.

inline constexpr std::array<std::string_view, 2> kEpochNames = {"epochs-0", "epochs-1"};
inline constexpr uint64_t kEpochPublishersMax = 4096;

/// What one copy holds.
struct EpochTable {
  uint64_t version = 0;  // grows with every change
  std::map<PublisherId, uint64_t> epochs{};

  bool operator==(const EpochTable&) const = default;
  /// 0 for a publisher that was never erased.
  uint64_t EpochOf(const PublisherId& publisher) const;
};

/// The file's bytes for a table.
std::vector<std::byte> EncodeEpochs(const EpochTable& table);
/// The table of a file's bytes; nothing when they are not whole.
std::optional<EpochTable> DecodeEpochs(std::span<const std::byte> bytes);
/// Most bytes both files may ever have.
uint64_t EpochBytesMax();

// The small files of a store's directory, for the store and for the tools.

inline constexpr std::string_view kLockName = "LOCK";

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

/// The table of one copy; nothing when it is not whole.
/// Errors: kIo
Result<std::optional<EpochTable>> ReadEpochFile(Files& files, FileId file);
/// Writes one copy and syncs it.
/// Errors: kNoSpace, kIo
Result<void> WriteEpochFile(Files& files, FileId file, const EpochTable& table);

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

/// Reads the headers from `begin` on. Records of lower generations are what a reused segment holds
/// behind its tail; they are no records. Pages that cannot be read hold none.
///
/// Errors: kIo more of them than a few bad sectors
Result<SegmentScan> ScanSegment(Files& files, FileId file, uint32_t number, uint64_t begin,
                                uint64_t segment_bytes, ScanDepth depth = ScanDepth::kHeaders);

/// Compares every section of a record with its checksum; `buffer` is memory to read through.
///
/// Errors: kIo. False: damaged
Result<bool> VerifyRecord(Files& files, FileId file, const RecordSummary& record,
                          std::span<std::byte> buffer);

}  // namespace quire::tier

#endif  // QUIRE_TIER_STORE_FILES_H_

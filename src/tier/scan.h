// Looking through the segments of a store for records, without any catalogue: for recovery and for
// the tools.
#ifndef QUIRE_TIER_SCAN_H_
#define QUIRE_TIER_SCAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "env/files.h"
#include "tier/record.h"

namespace quire::tier {

/// A stretch of a segment where a record should be and none is.
struct Gap {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// What a segment holds.
struct SegmentScan {
  std::vector<RecordSummary> records{};  // by ascending offset, of the highest generation
  std::vector<Gap> gaps{};               // before the tail
  uint64_t generation = 0;               // 0: no record
  uint64_t tail = 0;                     // end of the last record or void
  uint64_t other_versions = 0;           // headers of another format version
};

/// Reads the headers from `begin` on. Records of lower generations are what a reused segment holds
/// behind its tail; they are no records.
///
/// Errors: kIo
Result<SegmentScan> ScanSegment(Files& files, FileId file, uint32_t number, uint64_t begin,
                                uint64_t segment_bytes);

/// Compares every section of a record with its checksum; `buffer` is memory to read through.
///
/// Errors: kIo. False: damaged
Result<bool> VerifyRecord(Files& files, FileId file, const RecordSummary& record,
                          std::span<std::byte> buffer);

}  // namespace quire::tier

#endif  // QUIRE_TIER_SCAN_H_

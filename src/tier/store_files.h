// The small files of a store's directory, for the store and for the tools.
#ifndef QUIRE_TIER_STORE_FILES_H_
#define QUIRE_TIER_STORE_FILES_H_

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "env/files.h"
#include "tier/epochs.h"
#include "tier/record.h"

namespace quire::tier {

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

}  // namespace quire::tier

#endif  // QUIRE_TIER_STORE_FILES_H_

// Erase epochs of publishers: what each copy of them holds, and the ones that a store serves.
//
// They lie in two files that nothing else is rebuilt from and that are rebuilt from nothing else.
// An erasure is durable when both say so; a crash damages one of them at most, and the higher one
// is never older than the last confirmed erasure. docs/format/epochs.md describes the files.
#ifndef QUIRE_TIER_EPOCHS_H_
#define QUIRE_TIER_EPOCHS_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "env/files.h"
#include "quire/error.h"
#include "tier/record.h"

namespace quire::tier {

inline constexpr std::array<std::string_view, 2> kEpochNames = {"epochs-0", "epochs-1"};
/// Room for so many publishers is kept from the start; more of them take it from the segments.
inline constexpr uint64_t kEpochPublishersReserved = 1536;

struct EpochChange {
  PublisherId publisher{};
  uint64_t epoch = 0;
};

struct EpochTable {
  uint64_t version = 0;  // grows with every change
  std::map<PublisherId, uint64_t> epochs{};

  bool operator==(const EpochTable&) const = default;
  /// 0 for a publisher that was never erased.
  uint64_t EpochOf(const PublisherId& publisher) const;
  /// The next version: a publisher's epoch is at least this.
  void Raise(const EpochChange& change);
};

/// What a file holds: a table, and what changed since.
struct EpochImage {
  EpochTable table{};     // with the changes
  uint64_t changes = 0;   // behind the table
  uint64_t bytes = 0;     // of all that is understood
  uint32_t checksum = 0;  // of the last part of it: what the next change goes on from
  bool is_whole = true;   // false: something else lies behind it, a change that was torn perhaps
  bool is_old = false;    // of format 1, which takes no changes
};

/// A file's bytes for a table, and for the changes that follow version `version`. `checksum` goes
/// on from what lies before them.
std::vector<std::byte> EncodeEpochs(const EpochTable& table);
std::vector<std::byte> EncodeEpochChanges(std::span<const EpochChange> changes, uint64_t version,
                                          uint32_t& checksum);
/// Of a table's bytes: what its first change goes on from.
uint32_t EpochChecksum(std::span<const std::byte> table);
/// What a file's bytes say; nothing when there is no table.
std::optional<EpochImage> DecodeEpochs(std::span<const std::byte> bytes);
/// Whether a file has so many changes that a new table is to replace it.
bool IsLong(uint64_t changes, uint64_t publishers);
/// Most bytes that the files have together while they know so many publishers, one that is about to
/// replace another included.
uint64_t EpochBytesMax(uint64_t publishers = kEpochPublishersReserved);

/// Both files, as far as they can be read.
struct EpochCopies {
  std::array<std::optional<EpochImage>, 2> images{};
  /// The newest table; nothing when no copy can be believed: each is missing, damaged or
  /// unreadable, or may have lost a change.
  std::optional<EpochTable> table{};
};
EpochCopies ReadEpochs(Files& files, const std::string& directory);

/// Puts a new file in the place of a copy, whatever is there; durable when it returns.
///
/// Errors: kNoSpace, kIo: what was there may still be there
Result<FileId> ReplaceEpochFile(Files& files, const std::string& directory, size_t copy,
                                std::span<const std::byte> bytes);

/// The epochs that a store serves, and which of them are to be saved.
///
/// Threads: Of any; everything else the driver's. Takes its own lock, below which nothing is taken
class ServedEpochs {
 public:
  /// What the files hold.
  void Start(EpochTable saved);
  uint64_t Of(const PublisherId& publisher) const;
  /// `keep`: a restart must find it. Else it is forgotten with this object: nothing was ever stored
  /// that it would keep away.
  void Raise(const EpochChange& change, bool keep);
  /// A restart must find it, if it was raised at all.
  void Keep(const PublisherId& publisher);
  bool IsKept(const PublisherId& publisher) const;
  /// A restart will find it.
  bool IsSaved(const PublisherId& publisher) const;

  /// Of what is to be kept.
  uint64_t version() const;
  uint64_t saved_version() const { return saved_version_; }
  uint64_t publishers() const;
  std::vector<std::byte> Encode() const;
  /// What came after a version that is not below saved_version().
  std::span<const EpochChange> ChangesAfter(uint64_t version) const;
  /// Both files have everything up to this version.
  void Saved(uint64_t version);

 private:
  mutable Mutex mutex_{LockRank::kLeaf};
  EpochTable kept_ QUIRE_GUARDED_BY(mutex_);
  std::map<PublisherId, uint64_t> passing_ QUIRE_GUARDED_BY(mutex_);
  std::vector<EpochChange> unsaved_;              // versions after saved_version_
  std::map<PublisherId, uint64_t> last_changes_;  // of those in unsaved_: their version
  uint64_t saved_version_ = 0;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_EPOCHS_H_

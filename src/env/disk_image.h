// What a simulated disk holds: as its readers see it, and as a power cut would leave it.
#ifndef QUIRE_ENV_DISK_IMAGE_H_
#define QUIRE_ENV_DISK_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "quire/error.h"

namespace quire {

/// Names and files, each with the changes that were not synced yet. It fails only when it is full;
/// its user decides which calls are allowed, and when.
///
/// Threads: one
class DiskImage {
 public:
  struct Change {  // of one file, not synced
    uint64_t offset = 0;
    std::vector<std::byte> bytes{};
    bool resizes = false;  // offset is the new length
  };
  struct BadSectors {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool for_good = false;  // writing to them fails too, and does not mend them
  };
  struct File {
    /// Whether any of these bytes is in a bad sector; `writing`: that a write cannot mend.
    bool IsBad(uint64_t offset, uint64_t bytes, bool writing) const;
    /// These bytes were written: the disk has given them other sectors.
    void Mend(uint64_t offset, uint64_t bytes);

    std::vector<std::byte> contents;  // what a reader sees
    std::vector<std::byte> durable;   // what a power cut leaves for certain
    std::vector<Change> unsynced;     // what leads from one to the other
    bool locked = false;
    bool direct = false;       // past the page cache
    bool is_obstacle = false;  // no regular file: a directory, say
    std::vector<BadSectors> bad{};
  };
  using FilePointer = std::shared_ptr<File>;
  using Names = std::map<std::string, FilePointer>;

  /// `prng` decides which changes survive that were not synced; it must outlive the image.
  DiskImage(uint64_t bytes_max, Prng& prng) : bytes_max_(bytes_max), prng_(prng) {}

  void set_bytes_max(uint64_t bytes) { bytes_max_ = bytes; }
  /// Of all files that have a name.
  uint64_t bytes_used() const;

  const Names& names() const { return names_; }
  /// Null: no file has the name.
  FilePointer Find(const std::string& name) const;
  /// Null removes the name.
  void SetName(const std::string& name, FilePointer file);
  /// Names in a directory will outlive a power cut.
  void SyncNames(const std::string& directory);

  /// The file has at least this length.
  ///
  /// Errors: kNoSpace
  Result<void> Grow(File& file, uint64_t bytes);
  /// Exactly this length.
  ///
  /// Errors: kNoSpace
  Result<void> Resize(File& file, uint64_t bytes);
  static void Write(File& file, uint64_t offset, std::span<const std::byte> bytes);
  /// What a file would hold after a write of which some sectors are lost.
  std::vector<std::byte> Torn(const File& file, uint64_t offset, std::span<const std::byte> bytes);
  static void Sync(File& file);

  /// Synced changes stay; of names a first part of the others stays, as a journal keeps them, and
  /// of contents any part, torn at sectors.
  void LosePower();

 private:
  struct NameChange {
    std::string name{};
    FilePointer file{};  // null: removed
  };

  static void Apply(std::vector<std::byte>& contents, const Change& change);
  void WriteTorn(std::vector<std::byte>& contents, uint64_t offset,
                 std::span<const std::byte> bytes);
  void MakeDurable(const NameChange& change);

  uint64_t bytes_max_;
  Prng& prng_;
  Names names_;
  Names durable_names_;
  std::vector<NameChange> unsynced_names_;
};

}  // namespace quire

#endif  // QUIRE_ENV_DISK_IMAGE_H_

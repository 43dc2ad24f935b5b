// What a cold store holds, on disk, so that opening it need not look at every record. It is never
// trusted: whatever it says is checked when it is used, and without it everything is found again in
// the segments.
#ifndef QUIRE_TIER_CATALOGUE_H_
#define QUIRE_TIER_CATALOGUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "env/files.h"
#include "tier/cold_index.h"
#include "tier/record.h"

namespace quire::tier {

inline constexpr std::string_view kCatalogueName = "catalogue.db";

/// What the catalogue knows about a segment.
struct CatalogueRow {
  uint32_t segment = 0;
  PublisherId publisher{};
  uint64_t erase_epoch = 0;
  uint64_t generation = 0;
  uint64_t tail = 0;
  bool sealed = false;
  bool clean = false;  // sealed, and no earlier owner's bytes lie behind the tail
  std::vector<RecordRoot> roots{};
  std::vector<ColdEntry> entries{};  // by ascending page; next has no meaning
};

/// Threads: one at a time
class Catalogue {
 public:
  struct Options {
    std::string directory;
    uint64_t bytes_max = 0;  // of all its files
  };

  /// Opens it, or makes an empty one.
  /// Errors: kCorrupt it is damaged; kNoSpace; kIo
  static Result<std::unique_ptr<Catalogue>> Open(Files& files, const Options& options);
  /// Removes its files, damaged or not.
  static void Remove(Files& files, const std::string& directory);
  ~Catalogue();

  /// All rows that are whole; the others' number in `damaged`.
  /// Errors: kCorrupt, kIo
  Result<std::vector<CatalogueRow>> Read(uint64_t& damaged);
  /// Whether it has everything that its store confirmed: the first Commit was done.
  bool is_whole() const { return is_whole_; }
  /// What changes from here on is there whole, after Commit, or not at all.
  Result<void> Begin();
  /// Errors: kNoSpace bytes_max does not allow it; kCorrupt, kIo
  Result<void> Commit();
  /// Errors: as Commit
  Result<void> Put(const CatalogueRow& row);
  Result<void> Drop(uint32_t segment);
  /// Overwrites what dropped rows held.
  Result<void> Purge();

 private:
  struct Database;
  explicit Catalogue(std::unique_ptr<Database> database);
  std::unique_ptr<Database> database_;
  bool is_whole_ = false;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_CATALOGUE_H_

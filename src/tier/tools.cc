#include "tier/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tier/catalogue.h"
#include "tier/segments.h"
#include "tier/staging.h"
#include "tier/store_files.h"

namespace quire::tier {
namespace {

// A store's directory, walked segment by segment.
class Walk {
 public:
  enum class Depth : uint8_t { kHeaders, kEverything, kRepair };

  Walk(Files& files, std::string directory, Depth depth)
      : files_(files), directory_(std::move(directory)), depth_(depth), buffer_(1 << 20, 1) {}
  ~Walk() {
    if (lock_) files_.Close(*lock_);
  }

  Result<StoreReport> Run(const RecordVisitor& visit) {
    QUIRE_ASSIGN(const auto names, files_.List(directory_));
    const bool any = std::ranges::any_of(names, [](const std::string& name) {
      return name == kLockName || ParseSegmentName(name).has_value();
    });
    if (!any) return Fail(ErrorCode::kNotFound, fmt::format("{}: no store here", directory_));
    const LockText text = ReadLockText(files_, directory_);
    report_.bytes_cap = text.bytes_cap;
    if (depth_ != Depth::kHeaders) QUIRE_TRY(TakeLock());
    QUIRE_TRY(CountBytes(names));
    QUIRE_TRY(ReadEpochs());
    for (const std::string& name : names) {
      if (const auto number = ParseSegmentName(name)) {
        QUIRE_TRY(WalkSegment(name, *number, visit));
      }
    }
    if (depth_ == Depth::kEverything) CheckCatalogue(names);
    return report_;
  }

 private:
  std::string PathOf(std::string_view name) const { return fmt::format("{}/{}", directory_, name); }

  Result<void> TakeLock() {
    const auto lock = files_.Open(PathOf(kLockName), {.create = true, .locked = true});
    if (!lock && lock.error().code == ErrorCode::kBusy) {
      return Fail(ErrorCode::kBusy, fmt::format("store {}: a process has it open; only stat and ls "
                                                "work beside it",
                                                directory_));
    }
    QUIRE_TRY(lock);
    lock_ = *lock;
    return {};
  }

  Result<void> CountBytes(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const bool ours = name == kLockName || ParseSegmentName(name) ||
                        name.starts_with(kCatalogueName) ||
                        std::ranges::find(kEpochNames, name) != kEpochNames.end();
      if (!ours) continue;
      const auto file = files_.Open(PathOf(name), {.read_only = true});
      if (!file) continue;  // a log of the catalogue comes and goes
      const auto length = files_.Length(*file);
      files_.Close(*file);
      QUIRE_TRY(length);
      report_.bytes += *length;
    }
    return {};
  }

  Result<void> ReadEpochs() {
    for (const std::string_view name : kEpochNames) {
      std::optional<EpochTable> table;
      if (const auto file = files_.Open(PathOf(name), {.read_only = true})) {
        auto read = ReadEpochFile(files_, *file);
        files_.Close(*file);
        QUIRE_TRY(read);
        table = std::move(*read);
      }
      if (!table) ++report_.damaged;
      if (table && (!epochs_ || table->version > epochs_->version)) epochs_ = std::move(table);
    }
    return {};
  }

  // Whether what a publisher wrote may still be looked at.
  bool Erased(const RecordSummary& record) const {
    if (!epochs_) return record.publisher != PublisherId{};
    return record.erase_epoch < epochs_->EpochOf(record.publisher);
  }

  Result<void> WalkSegment(const std::string& name, uint32_t number, const RecordVisitor& visit) {
    const bool writes = depth_ == Depth::kRepair;
    const auto file = files_.Open(PathOf(name), {.read_only = !writes, .direct = true});
    if (!file && file.error().code == ErrorCode::kNotFound) return {};  // it went just now
    QUIRE_TRY(file);
    const auto walked = WalkFile(*file, number, visit);
    files_.Close(*file);
    return walked;
  }

  Result<void> WalkFile(FileId file, uint32_t number, const RecordVisitor& visit) {
    QUIRE_ASSIGN(const uint64_t length, files_.Length(file));
    QUIRE_ASSIGN(const SegmentScan scan, ScanSegment(files_, file, number, 0,
                                                     length / kRecordAlignment * kRecordAlignment));
    report_.other_versions += scan.other_versions;
    tails_[number] = {scan.generation, scan.tail};
    // An owner beside us may be writing there: only who has the lock calls it damage.
    if (depth_ != Depth::kHeaders) report_.damaged += scan.gaps.size();
    for (const Gap& gap : scan.gaps) QUIRE_TRY(Void(file, number, scan.generation, gap));
    bool wiped = false;
    for (const RecordSummary& record : scan.records) {
      if (Erased(record)) {
        ++report_.erased;
        wiped |= !epochs_;
        continue;
      }
      bool good = true;
      if (depth_ != Depth::kHeaders) {
        QUIRE_ASSIGN(good, VerifyRecord(files_, file, record, buffer_.memory()));
      }
      if (good) {
        ++report_.records;
        if (visit) visit(record);
        continue;
      }
      ++report_.damaged;
      QUIRE_TRY(Void(file, number, scan.generation,
                     {.offset = record.location.offset, .bytes = record.record_bytes()}));
    }
    if (wiped && depth_ == Depth::kRepair) QUIRE_TRY(Wipe(file, length));
    return {};
  }

  Result<void> Void(FileId file, uint32_t number, uint64_t generation, const Gap& gap) {
    if (depth_ != Depth::kRepair) return {};
    Staging page(kRecordAlignment, 1);
    EncodeVoid({.segment = number, .offset = gap.offset, .generation = generation}, gap.bytes,
               page.memory());
    QUIRE_TRY(files_.WriteAt(file, gap.offset, page.memory()));
    return files_.Sync(file);
  }

  Result<void> Wipe(FileId file, uint64_t length) {
    std::ranges::fill(buffer_.memory(), std::byte{0});
    for (uint64_t done = 0; done < length; done += buffer_.chunk_bytes()) {
      const uint64_t bytes = std::min(buffer_.chunk_bytes(), length - done);
      QUIRE_TRY(files_.WriteAt(file, done, buffer_.memory().first(bytes)));
    }
    return files_.Sync(file);
  }

  // Rows that are damaged, and records that it knows of behind the last one that is there.
  void CheckCatalogue(const std::vector<std::string>& names) {
    if (std::ranges::find(names, kCatalogueName) == names.end()) return;
    auto catalogue = Catalogue::Open(files_, {.directory = directory_, .bytes_max = ~uint64_t{0}});
    uint64_t damaged_rows = 0;
    const auto rows =
        catalogue ? (*catalogue)->Read(damaged_rows) : std::unexpected(catalogue.error());
    if (!rows) {
      ++report_.damaged;
      return;
    }
    report_.damaged += damaged_rows;
    for (const CatalogueRow& row : *rows) {
      const auto tail = tails_.find(row.segment);
      if (tail == tails_.end()) {
        report_.damaged += row.entries.size();
        continue;
      }
      const auto [generation, end] = tail->second;
      if (generation != row.generation) continue;
      report_.damaged += static_cast<uint64_t>(std::ranges::count_if(
          row.entries, [&](const ColdEntry& e) { return e.page * kRecordAlignment >= end; }));
    }
  }

  Files& files_;
  const std::string directory_;
  const Depth depth_;
  Staging buffer_;
  std::optional<FileId> lock_;
  std::optional<EpochTable> epochs_;                         // nothing: both copies are damaged
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> tails_;  // generation and tail of each segment
  StoreReport report_;
};

// Both copies as the newer one that is whole. Where none is, what is left belongs to nobody by
// name, so an empty table is right.
Result<void> RenewEpochs(Files& files, const std::string& directory) {
  std::array<std::optional<EpochTable>, 2> tables;
  std::array<FileId, 2> copies;
  EpochTable best;
  for (size_t i = 0; i < copies.size(); ++i) {
    const std::string path = fmt::format("{}/{}", directory, kEpochNames[i]);
    QUIRE_ASSIGN(copies[i], files.Open(path, {.create = true}));
    QUIRE_ASSIGN(tables[i], ReadEpochFile(files, copies[i]));
    if (tables[i] && tables[i]->version > best.version) best = *tables[i];
  }
  Result<void> written;
  for (size_t i = 0; i < copies.size(); ++i) {
    const bool good = tables[i] && *tables[i] == best;
    if (!good && written) written = WriteEpochFile(files, copies[i], best);
    files.Close(copies[i]);
  }
  QUIRE_TRY(written);
  return files.SyncDirectory(directory);
}

}  // namespace

Result<StoreReport> StatStore(Files& files, const std::string& directory,
                              const RecordVisitor& visit) {
  return Walk(files, directory, Walk::Depth::kHeaders).Run(visit);
}

Result<StoreReport> VerifyStore(Files& files, const std::string& directory) {
  return Walk(files, directory, Walk::Depth::kEverything).Run(nullptr);
}

Result<StoreReport> RepairStore(Files& files, const std::string& directory) {
  QUIRE_ASSIGN(const StoreReport before, VerifyStore(files, directory));
  if (before.other_versions > 0) {
    return Fail(ErrorCode::kUnsupported, fmt::format("store {}: {} records of another version",
                                                     directory, before.other_versions));
  }
  QUIRE_TRY(Walk(files, directory, Walk::Depth::kRepair).Run(nullptr));
  QUIRE_TRY(RenewEpochs(files, directory));
  Catalogue::Remove(files, directory);  // whoever opens the store finds everything anew
  QUIRE_ASSIGN(StoreReport after, VerifyStore(files, directory));
  after.repaired = before.damaged - std::min(before.damaged, after.damaged);
  return after;
}

Result<StoreReport> UpgradeStore(Files& files, const std::string& directory) {
  QUIRE_ASSIGN(const StoreReport report, StatStore(files, directory));
  if (report.other_versions == 0) return report;
  return Fail(ErrorCode::kUnsupported,
              fmt::format("store {}: {} records of a version that this build does not know; it "
                          "writes version {}",
                          directory, report.other_versions, kRecordVersion));
}

}  // namespace quire::tier

#include "tier/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/log.h"
#include "tier/catalogue.h"
#include "tier/epochs.h"
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
    CountBytes(names);
    LookAtEpochs();
    for (const std::string& name : names) {
      if (const auto number = ParseSegmentName(name)) WalkSegment(name, *number, visit);
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

  void CountBytes(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const bool ours = name == kLockName || ParseSegmentName(name) ||
                        name.starts_with(kCatalogueName) ||
                        std::ranges::find(kEpochNames, name) != kEpochNames.end();
      if (!ours) continue;
      const auto file = files_.Open(PathOf(name), {.read_only = true});
      if (!file) continue;  // a log of the catalogue comes and goes
      const auto length = files_.Length(*file);
      files_.Close(*file);
      report_.bytes += length.value_or(0);
    }
  }

  void LookAtEpochs() {
    EpochCopies read = ReadEpochs(files_, directory_);
    for (const auto& image : read.images) report_.damaged += image && image->is_whole ? 0 : 1;
    epochs_ = std::move(read.table);
  }

  // Whether what a publisher wrote may still be looked at.
  bool Erased(const RecordSummary& record) const {
    if (!epochs_) return record.publisher != PublisherId{};
    return record.erase_epoch < epochs_->EpochOf(record.publisher);
  }

  void WalkSegment(const std::string& name, uint32_t number, const RecordVisitor& visit) {
    const bool writes = depth_ == Depth::kRepair;
    const auto file = files_.Open(PathOf(name), {.read_only = !writes, .direct = true});
    if (!file && file.error().code == ErrorCode::kNotFound) return;  // it went just now
    const auto walked =
        file ? WalkFile(*file, number, visit) : Result<void>(std::unexpected(file.error()));
    if (file) files_.Close(*file);
    if (walked) return;
    ++report_.damaged;
    LogWarn("store {}: {} cannot be used: {}", directory_, name, walked.error().message);
    // Whatever it is, it is nobody's business to destroy it.
    if (writes) Try(files_.Rename(PathOf(name), PathOf(name + ".damaged")));
  }

  Result<void> WalkFile(FileId file, uint32_t number, const RecordVisitor& visit) {
    QUIRE_ASSIGN(const uint64_t length, files_.Length(file));
    QUIRE_ASSIGN(const SegmentScan scan, ScanSegment(files_, file, number, 0,
                                                     length / kRecordAlignment * kRecordAlignment));
    report_.other_versions += scan.other_versions;
    tails_[number] = {scan.generation, scan.tail};
    // An owner beside us may be writing there: only who has the lock calls it damage.
    if (depth_ != Depth::kHeaders) report_.damaged += scan.gaps.size();
    report_.damaged += scan.unreadable.size();
    for (const Gap& gap : scan.gaps) Void(file, number, scan.generation, gap);
    for (const Gap& gap : scan.unreadable) Blank(file, gap.offset, gap.bytes);
    bool wiped = false;
    for (const RecordSummary& record : scan.records) {
      if (Erased(record)) {
        ++report_.erased;
        wiped |= !epochs_;
        continue;
      }
      // What the disk does not give is as good as damaged.
      const bool good = depth_ == Depth::kHeaders ||
                        VerifyRecord(files_, file, record, buffer_.memory()).value_or(false);
      if (good) {
        ++report_.records;
        if (visit) visit(record);
        continue;
      }
      ++report_.damaged;
      Void(file, number, scan.generation,
           {.offset = record.location.offset, .bytes = record.record_bytes()});
    }
    if (wiped) Blank(file, 0, length);
    return {};
  }

  // What repair cannot do costs nothing but what it is about.
  void Try(const Result<void>& done) const {
    if (!done) LogWarn("store {}: {}", directory_, done.error().message);
  }

  void Void(FileId file, uint32_t number, uint64_t generation, const Gap& gap) {
    if (depth_ != Depth::kRepair) return;
    Staging page(kRecordAlignment, 1);
    EncodeVoid({.segment = number, .offset = gap.offset, .generation = generation}, gap.bytes,
               page.memory());
    Try(files_.WriteAt(file, gap.offset, page.memory()));
    Try(files_.Sync(file));
  }

  // Zeros, as far as the disk takes them.
  void Blank(FileId file, uint64_t begin, uint64_t bytes) {
    if (depth_ != Depth::kRepair) return;
    Staging zeros(kBlankBytes, 1);
    std::ranges::fill(zeros.memory(), std::byte{0});
    for (uint64_t done = 0; done < bytes; done += kBlankBytes) {
      const uint64_t some = std::min(kBlankBytes, bytes - done);
      Try(files_.WriteAt(file, begin + done, zeros.memory().first(some)));
    }
    Try(files_.Sync(file));
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
  static constexpr uint64_t kBlankBytes = 64 << 10;

  const Depth depth_;
  Staging buffer_;
  std::optional<FileId> lock_;
  std::optional<EpochTable> epochs_;                         // nothing: both copies are damaged
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> tails_;  // generation and tail of each segment
  StoreReport report_;
};

// Both copies as the newest table that can be believed. Where there is none, what is left belongs
// to nobody by name, so an empty table is right.
Result<void> RenewEpochs(Files& files, const std::string& directory) {
  const EpochCopies read = ReadEpochs(files, directory);
  const EpochTable best = read.table.value_or(EpochTable());
  const std::vector<std::byte> bytes = EncodeEpochs(best);
  Result<void> written;
  for (size_t i = 0; i < read.images.size(); ++i) {
    const auto& image = read.images[i];
    if (image && image->is_whole && image->table == best) continue;
    const auto made = ReplaceEpochFile(files, directory, i, bytes);
    if (made) files.Close(*made);
    if (!made) written = std::unexpected(made.error());
  }
  return written;
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

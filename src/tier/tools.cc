#include "tier/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/log.h"
#include "keys/key_table.h"
#include "tier/catalogue.h"
#include "tier/epochs.h"
#include "tier/secret.h"
#include "tier/segments.h"
#include "tier/staging.h"
#include "tier/store_files.h"

namespace quire::tier {
namespace {

// Where something is damaged.
struct Place {
  uint32_t segment = 0;
  uint64_t generation = 0;
  uint64_t offset = 0;

  auto operator<=>(const Place&) const = default;
};
using Damages = std::map<Place, uint64_t>;  // with the records that are lost there

// A store's directory, walked segment by segment.
class Walk {
 public:
  enum class Depth : uint8_t { kHeaders, kBeside, kEverything, kRepair };

  Walk(Files& files, std::string directory, Depth depth)
      : files_(files),
        directory_(std::move(directory)),
        depth_(depth),
        scan_depth_(depth == Depth::kHeaders ? ScanDepth::kHeaders : ScanDepth::kPayloads),
        memory_(ScanBytes(scan_depth_), 1) {}
  ~Walk() {
    if (lock_) files_.Close(*lock_);
  }

  Result<StoreReport> Run(const RecordVisitor& visit,
                          const std::function<void()>& pause = nullptr) {
    QUIRE_ASSIGN(const auto names, files_.List(directory_));
    const bool any = std::ranges::any_of(names, [](const std::string& name) {
      return name == kLockName || ParseSegmentName(name).has_value();
    });
    if (!any) return Fail(ErrorCode::kNotFound, fmt::format("{}: no store here", directory_));
    report_.bytes_cap = ReadLockText(files_, directory_).bytes_cap;
    if (HasLock()) QUIRE_TRY(TakeLock());
    CountBytes(names);
    LookAtEpochs();
    LookAtKeys();
    if (HasLock()) ReadCatalogue(names);
    for (const std::string& name : names) {
      if (const auto number = ParseSegmentName(name)) WalkSegment(*number, visit);
    }
    CountMissingSegments(names);
    if (pause && (!damages_.empty() || epochs_damaged_ > 0 || keys_damaged_ > 0)) {
      pause();
      LookAgain();
    }
    if (depth_ == Depth::kRepair) QUIRE_TRY(RenewEpochs());
    if (depth_ == Depth::kRepair) QUIRE_TRY(RenewKeyFiles());
    if (depth_ != Depth::kHeaders) report_.secret_changed = SecretChanged(files_, directory_);
    report_.damaged += epochs_damaged_ + keys_damaged_ + (report_.secret_changed ? 1 : 0);
    for (const auto& [place, records] : damages_) report_.damaged += records;
    return report_;
  }

 private:
  bool HasLock() const { return depth_ >= Depth::kEverything; }
  std::string PathOf(std::string_view name) const { return fmt::format("{}/{}", directory_, name); }

  Result<void> TakeLock() {
    const auto lock = files_.Open(PathOf(kLockName), {.create = true, .locked = true});
    if (!lock && lock.error().code == ErrorCode::kBusy) {
      return Fail(ErrorCode::kBusy,
                  fmt::format("store {}: a process has it open; only stat, ls and "
                              "verify --read-only work beside it",
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
                        std::ranges::find(keys::kKeyNames, name) != keys::kKeyNames.end() ||
                        std::ranges::find(kEpochNames, name) != kEpochNames.end();
      if (!ours) continue;
      const auto file = files_.Open(PathOf(name), {.read_only = true});
      if (!file) continue;  // a log of the catalogue comes and goes
      report_.bytes += files_.Length(*file).value_or(0);
      files_.Close(*file);
    }
  }

  void LookAtEpochs() {
    epochs_ = ReadEpochs(files_, directory_);
    epochs_damaged_ = 0;
    for (const auto& image : epochs_.images) epochs_damaged_ += image && image->is_whole ? 0 : 1;
  }

  // What is wrapped cannot be looked at without the caller's key; the files can.
  void LookAtKeys() {
    keys_ = keys::ReadKeys(files_, directory_);
    keys_damaged_ = 0;
    if (!keys_.any()) return;
    report_.is_encrypted = true;
    const keys::KeyTable* const table = keys_.newest();
    keys_damaged_ = table == nullptr ? keys::kKeyNames.size() : keys_.damaged();
    if (table == nullptr) return;
    report_.keys = table->keys.size();
    report_.wrapped_by =
        table->kind == keys::WrapKind::kKey ? fmt::format("key {}", ToHex(table->id)) : "command";
  }

  Result<void> RenewKeyFiles() {
    if (keys_.newest() == nullptr) return {};  // nothing can be made of nothing
    Result<void> written;
    for (size_t i = 0; i < keys_.tables.size(); ++i) {
      if (keys_.tables[i] == *keys_.newest()) continue;
      auto one = keys::WriteKeys(files_, directory_, i, *keys_.newest());
      if (!one) written = std::move(one);
    }
    return written;
  }

  // Both copies as the newest table that can be believed. Where there is none, what is left belongs
  // to no tenant by name, so an empty table is right.
  Result<void> RenewEpochs() {
    const EpochTable best = epochs_.table.value_or(EpochTable());
    const std::vector<std::byte> bytes = EncodeEpochs(best);
    Result<void> written;
    for (size_t i = 0; i < epochs_.images.size(); ++i) {
      const auto& image = epochs_.images[i];
      if (image && image->is_whole && image->table == best) continue;
      const auto made = ReplaceEpochFile(files_, directory_, i, bytes);
      if (made) files_.Close(*made);
      if (!made) written = std::unexpected(made.error());
    }
    return written;
  }

  void ReadCatalogue(const std::vector<std::string>& names) {
    if (std::ranges::find(names, kCatalogueName) == names.end()) return;
    auto catalogue = Catalogue::Open(files_, {.directory = directory_, .bytes_max = ~uint64_t{0}});
    uint64_t damaged_rows = 0;
    auto rows = catalogue ? (*catalogue)->Read(damaged_rows) : std::unexpected(catalogue.error());
    report_.damaged += rows ? damaged_rows : 1;
    if (!rows) return;
    is_catalogue_whole_ = (*catalogue)->is_whole();
    for (CatalogueRow& row : *rows) rows_[row.segment] = std::move(row);
  }

  // Whether what a publisher wrote may still be looked at.
  bool Erased(const PublisherId& publisher, uint64_t erase_epoch) const {
    if (!epochs_.table) return publisher != PublisherId{};
    return erase_epoch < epochs_.table->EpochOf(publisher);
  }

  Result<SegmentScan> Scan(FileId file, uint32_t number) {
    QUIRE_ASSIGN(const uint64_t length, Patiently([&] { return files_.Length(file); }));
    return ScanSegment(files_, file, number, 0, RoundDown(length, kRecordAlignment), scan_depth_,
                       memory_.memory());
  }

  void WalkSegment(uint32_t number, const RecordVisitor& visit) {
    const bool writes = depth_ == Depth::kRepair;
    const std::string path = PathOf(SegmentName(number));
    const auto file =
        Patiently([&] { return files_.Open(path, {.read_only = !writes, .direct = true}); });
    if (!file && file.error().code == ErrorCode::kNotFound) return;  // it went just now
    const auto scan =
        file ? Scan(*file, number) : Result<SegmentScan>(std::unexpected(file.error()));
    if (scan) {
      damages_.merge(DamagesIn(number, *scan));
      const bool wipe = Count(*scan, visit);
      if (writes && wipe) Try(Blank(files_, *file, 0, files_.Length(*file).value_or(0)));
      if (writes && !wipe) Mend(*file, number, *scan);
    }
    if (file) files_.Close(*file);
    if (scan) return;
    damages_[{.segment = number}] = std::max<uint64_t>(LostWith(number), 1);
    LogWarn("store {}: {} cannot be used: {}", directory_, path, scan.error().message);
    // Whatever it is, it must not be destroyed.
    if (writes) Try(files_.Rename(path, path + ".damaged"));
  }

  // Counts what may be served, and what waits to be overwritten. True when it is unknown what of it
  // was erased.
  bool Count(const SegmentScan& scan, const RecordVisitor& visit) {
    report_.other_versions += scan.other_versions;
    bool unknown = false;
    for (const RecordSummary& record : scan.records) {
      if (Erased(record.publisher, record.erase_epoch)) {
        ++report_.erased;
        unknown |= !epochs_.table;
        continue;
      }
      ++report_.records;
      report_.is_encrypted |= record.is_sealed;
      if (visit) visit(record);
    }
    for (const RecordSummary& record : scan.damaged) {
      unknown |= !epochs_.table && record.publisher != PublisherId{};
    }
    return unknown;
  }

  const CatalogueRow* RowOf(uint32_t number) const {
    const auto row = rows_.find(number);
    return row == rows_.end() ? nullptr : &row->second;
  }
  // Records that the catalogue knows of in a segment.
  uint64_t LostWith(uint32_t number) const {
    const CatalogueRow* const row = RowOf(number);
    if (row == nullptr || Erased(row->publisher, row->erase_epoch)) return 0;
    return row->entries.size();
  }

  // Damages of a segment, without those that are unfinished.
  Damages DamagesIn(uint32_t number, const SegmentScan& scan) {
    Damages damages;
    // An owner beside us may be writing there: only a caller that has the lock, or looks twice,
    // calls it damage.
    if (depth_ == Depth::kHeaders) return damages;
    const CatalogueRow* const row = RowOf(number);
    if (row != nullptr && row->generation > scan.generation) {
      if (const uint64_t lost = LostWith(number)) damages[{.segment = number}] = lost;
      return damages;
    }
    const bool described = row != nullptr && row->generation == scan.generation;
    const uint64_t confirmed_end = ConfirmedEnd(scan, described ? row : nullptr);
    const auto add = [&](const Gap& gap) {
      if (gap.offset >= confirmed_end) {
        ++report_.unfinished;
        return;
      }
      uint64_t lost = 0;
      for (size_t i = 0; described && i < row->entries.size(); ++i) {
        const uint64_t offset = row->entries[i].page * kRecordAlignment;
        lost += offset >= gap.offset && offset < gap.offset + gap.bytes ? 1 : 0;
      }
      damages[{number, scan.generation, gap.offset}] = std::max<uint64_t>(lost, 1);
    };
    for (const Gap& gap : scan.gaps) add(gap);
    for (const RecordSummary& record : scan.damaged) {
      if (Erased(record.publisher, record.erase_epoch)) continue;
      add({.offset = record.location.offset, .bytes = record.record_bytes()});
    }
    if (described && row->tail > scan.tail && !Erased(row->publisher, row->erase_epoch)) {
      const auto lost = std::ranges::count_if(row->entries, [&](const ColdEntry& entry) {
        return entry.page * kRecordAlignment >= scan.tail;
      });
      if (lost > 0) damages[{number, scan.generation, scan.tail}] = static_cast<uint64_t>(lost);
    }
    for (const Gap& gap : scan.unreadable) damages.insert({{number, 0, gap.offset}, 1});
    return damages;
  }

  // What lies behind this in a segment was never confirmed: a crash may have cut it off.
  uint64_t ConfirmedEnd(const SegmentScan& scan, const CatalogueRow* row) const {
    if (row != nullptr) return row->tail;
    if (is_catalogue_whole_) return 0;
    if (depth_ != Depth::kBeside) return ~uint64_t{0};
    if (scan.records.empty()) return 0;
    return scan.records.back().location.offset + scan.records.back().record_bytes();
  }

  void CountMissingSegments(const std::vector<std::string>& names) {
    for (const auto& [number, row] : rows_) {
      const uint64_t lost = LostWith(number);
      const bool there = std::ranges::find(names, SegmentName(number)) != names.end();
      if (!there && lost > 0) damages_[{.segment = number}] = lost;
    }
  }

  // What was damaged when it was looked at first, and is not any more, was being written.
  void LookAgain() {
    LookAtEpochs();
    LookAtKeys();
    const Damages before = std::exchange(damages_, {});
    for (auto place = before.begin(); place != before.end();) {
      const uint32_t number = place->first.segment;
      const auto file =
          files_.Open(PathOf(SegmentName(number)), {.read_only = true, .direct = true});
      const auto scan =
          file ? Scan(*file, number) : Result<SegmentScan>(std::unexpected(file.error()));
      if (file) files_.Close(*file);
      const Damages now = scan ? DamagesIn(number, *scan) : Damages{{{.segment = number}, 1}};
      for (; place != before.end() && place->first.segment == number; ++place) {
        if (now.contains(place->first)) damages_.insert(*place);
      }
    }
  }

  // What repair cannot do costs nothing but what it is about.
  void Try(const Result<void>& done) const {
    if (!done) LogWarn("store {}: {}", directory_, done.error().message);
  }

  // Says of every stretch that holds no record that it does not, and overwrites what cannot be
  // read.
  void Mend(FileId file, uint32_t number, const SegmentScan& scan) {
    std::vector<Gap> voids = scan.gaps;
    for (const RecordSummary& record : scan.damaged) {
      voids.push_back({.offset = record.location.offset, .bytes = record.record_bytes()});
    }
    for (const Gap& gap : voids) {
      Try(WriteVoid(files_, file,
                    {.segment = number, .offset = gap.offset, .generation = scan.generation},
                    gap.bytes));
    }
    for (const Gap& gap : scan.unreadable) Try(Blank(files_, file, gap.offset, gap.bytes));
  }

  Files& files_;
  const std::string directory_;

  const Depth depth_;
  const ScanDepth scan_depth_;
  Staging memory_;  // that every segment is read through
  std::optional<FileId> lock_;
  EpochCopies epochs_;           // no table: both are damaged
  uint64_t epochs_damaged_ = 0;  // copies
  keys::KeyCopies keys_;
  uint64_t keys_damaged_ = 0;  // copies
  std::map<uint32_t, CatalogueRow> rows_;
  bool is_catalogue_whole_ = false;  // what it does not have was not confirmed
  Damages damages_;
  StoreReport report_;
};

}  // namespace

Result<StoreReport> StatStore(Files& files, const std::string& directory,
                              const RecordVisitor& visit) {
  return Walk(files, directory, Walk::Depth::kHeaders).Run(visit);
}

Result<StoreReport> VerifyStore(Files& files, const std::string& directory) {
  return Walk(files, directory, Walk::Depth::kEverything).Run(nullptr);
}

Result<StoreReport> VerifyStoreBeside(Files& files, const std::string& directory,
                                      const std::function<void()>& pause) {
  return Walk(files, directory, Walk::Depth::kBeside).Run(nullptr, pause);
}

Result<StoreReport> RepairStore(Files& files, const std::string& directory) {
  QUIRE_ASSIGN(const StoreReport before, VerifyStore(files, directory));
  if (before.other_versions > 0) {
    return Fail(ErrorCode::kUnsupported, fmt::format("store {}: {} records of another version",
                                                     directory, before.other_versions));
  }
  QUIRE_TRY(Walk(files, directory, Walk::Depth::kRepair).Run(nullptr));
  Catalogue::Remove(files, directory);  // the next process finds everything anew
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

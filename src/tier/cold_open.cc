// Opening a cold store: what the catalogue says is compared with the segments, and what it does not
// know is looked for there.
#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "base/log.h"
#include "tier/cold.h"
#include "tier/store_files.h"

namespace quire::tier {

// A generation is the number of the opening, then of the segment begun since.
constexpr uint32_t kGenerationBits = 32;
// Of a file of epochs in an older format: a new one replaces it before anything is added.
constexpr uint64_t kTakesNoChanges = ~uint64_t{0} >> 1;

class ColdOpener {
 public:
  ColdOpener(const ColdOptions& options, Files& files, const Clock& clock, const StoreKeys& keys)
      : options_(options), files_(files), clock_(clock), caller_keys_(keys) {
    if (keys.empty()) return;
    options_.bytes_beside = keys::KeyFileBytesMax(keys::KeysMax(options.bytes_cap));
  }
  ~ColdOpener() {
    if (store_ != nullptr) return;  // it closes what it has
    for (const FileId file : opened_) files_.Close(file);
  }

  Result<std::unique_ptr<ColdStore>> Open() {
    QUIRE_ASSIGN(ColdSizes sizes, ResolveSizes(options_));
    QUIRE_TRY(files_.MakeDirectory(options_.directory));
    QUIRE_TRY(TakeLock());
    QUIRE_TRY(OpenSegments(sizes.segment_bytes));
    QUIRE_TRY(OpenKeys());
    options_.segment_bytes = segment_bytes_;
    QUIRE_ASSIGN(sizes, ResolveSizes(options_));
    MakeState(sizes);
    QUIRE_TRY(RefuseOtherVersions());
    QUIRE_TRY(OpenEpochs());
    ReadCatalogue(sizes.catalogue_bytes_max);
    FindRecords();
    CheckEnds();
    DistrustOldEpochs();
    EnterSegments();
    RemoveBeyondCap();
    QUIRE_TRY(WriteLock());
    return Finish();
  }

 private:
  struct Found {
    uint32_t number = 0;
    CatalogueRow row{};
    std::vector<Gap> gaps{};
    std::vector<RecordSummary> last{};  // without a catalogue: those that may not be whole
    bool scanned = false;
    uint64_t blank_begin = 0;  // of one that was scanned: nothing but zeros from here on
    bool described = false;    // by the catalogue, at least in part
  };

  std::string PathOf(std::string_view name) const {
    return fmt::format("{}/{}", options_.directory, name);
  }
  Result<FileId> OpenFile(std::string_view name, const OpenOptions& options) {
    QUIRE_ASSIGN(const FileId file, files_.Open(PathOf(name), options));
    opened_.push_back(file);
    return file;
  }

  Result<void> TakeLock() {
    const auto lock = OpenFile(kLockName, {.create = true, .locked = true});
    if (!lock && lock.error().code == ErrorCode::kBusy) {
      return Fail(ErrorCode::kBusy,
                  fmt::format("store {}: another process has it open", options_.directory));
    }
    QUIRE_TRY(lock);
    lock_ = *lock;
    return {};
  }

  // Durable before the first segment is begun. Lengths of files may be what a crash left, and a
  // generation must never be given twice: after a power cut an old catalogue would believe it.
  Result<void> WriteLock() {
    const uint64_t opens = std::max(opens_, state_->generation >> kGenerationBits) + 1;
    state_->generation = opens << kGenerationBits;
    const LockText text = {
        .opens = opens, .bytes_cap = options_.bytes_cap, .segment_bytes = segment_bytes_};
    if (!WriteLockText(files_, lock_, text)) QUIRE_TRY(ReplaceLock(text));
    return files_.SyncDirectory(options_.directory);
  }

  // What lies on a bad sector for good is written to a new file, whose lock is held before it has
  // the name.
  Result<void> ReplaceLock(const LockText& text) {
    const std::string beside = std::string(kLockName) + ".new";
    QUIRE_ASSIGN(const FileId made, OpenFile(beside, {.create = true, .locked = true}));
    QUIRE_TRY(WriteLockText(files_, made, text));
    QUIRE_TRY(files_.Rename(PathOf(beside), PathOf(kLockName)));
    std::erase(opened_, lock_);
    files_.Close(std::exchange(lock_, made));
    return {};
  }

  // A store that exists keeps the segment length it has: what the lock file says, and without that
  // the length of most of its files, the longer one of equally many.
  Result<void> OpenSegments(uint64_t default_bytes) {
    QUIRE_ASSIGN(const auto names, files_.List(options_.directory));
    std::map<uint64_t, uint32_t> lengths;
    for (const std::string& name : names) {
      const auto number = ParseSegmentName(name);
      if (!number) continue;
      const auto file = Patiently([&] { return OpenFile(name, {.direct = true}); });
      if (!file) {
        lost_.emplace_back(*number, file.error().message);
        continue;
      }
      const uint64_t length = files_.Length(*file).value_or(0);
      if (length % kRecordAlignment == 0 && length > 0) ++lengths[length];
      segments_.emplace_back(*number, *file);
    }
    const LockText lock = ReadLockText(files_, options_.directory);
    opens_ = lock.opens;
    segment_bytes_ = lock.segment_bytes;
    if (segment_bytes_ != 0) return {};
    segment_bytes_ = default_bytes;
    uint32_t most = 0;
    for (const auto& [length, count] : lengths) {
      if (count >= most) segment_bytes_ = length;
      most = std::max(most, count);
    }
    return {};
  }

  // Before anything is changed: without its keys an encrypted store would be all misses, and be
  // written over.
  Result<void> OpenKeys() {
    if (caller_keys_.empty()) {
      if (!keys::ReadKeys(files_, options_.directory).any()) return {};
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("store {}: it is encrypted: give the key that it was made with "
                              "(--keys FILE or --keys-command CMD); nothing was changed",
                              options_.directory));
    }
    const bool is_fresh = segments_.empty() && lost_.empty() && opens_ == 0;
    QUIRE_ASSIGN(keys_, keys::KeyRing::Open(files_,
                                            {.directory = options_.directory,
                                             .keys_max = keys::KeysMax(options_.bytes_cap),
                                             .without = is_fresh ? keys::WithoutKeys::kMake
                                                                 : keys::WithoutKeys::kRefuse},
                                            caller_keys_));
    return {};
  }

  void MakeState(const ColdSizes& sizes) {
    state_ = std::make_unique<ColdState>(options_, sizes, files_, clock_);
    state_->keys = std::move(keys_);
    for (const auto& [number, file] : segments_) {
      state_->segments.Reserve(number);
      state_->segments[number].file = file;
      state_->segments[number].state = SegmentState::kFree;
    }
    for (const auto& [number, why] : lost_) LoseSegment(number, why);
  }

  // What is in it is not known, and stays as it is.
  void LoseSegment(uint32_t number, std::string_view why) {
    LogWarn("store {}: going on without {} until it is opened again, or `quire store repair`: {}",
            options_.directory, SegmentName(number), why);
    state_->segments.Reserve(number);
    state_->segments[number].state = SegmentState::kLost;
    state_->may_have_more = true;
    ++recovery_.damaged;
  }

  // The header at the start of every segment; before anything is changed.
  Result<void> RefuseOtherVersions() {
    for (const auto& [number, file] : segments_) {
      // Where it cannot be read the segment is looked through.
      const auto read = FirstHeader(files_, file, number);
      const auto first = read.value_or(std::unexpected(RecordMiss::kTruncated));
      if (!first && first.error() == RecordMiss::kOtherVersion) {
        return Fail(ErrorCode::kUnsupported,
                    fmt::format("store {}: {} was written by another version of the format; this "
                                "build reads version {}",
                                options_.directory, SegmentName(number), kRecordVersion));
      }
      if (first && first->is_sealed && state_->keys == nullptr) {
        return Fail(ErrorCode::kInvalidArgument,
                    fmt::format("store {}: it is encrypted, and {} and {} are gone: put them back "
                                "from a copy and give its key; without them nothing in it can be "
                                "read, and the directory may be removed; nothing was changed",
                                options_.directory, keys::kKeyNames[0], keys::kKeyNames[1]));
      }
      generations_[number] = first ? first->location.generation : 0;
    }
    return {};
  }

  Result<void> OpenEpochs() {
    const EpochCopies read = ReadEpochs(files_, options_.directory);
    const bool is_fresh = segments_.empty() && lost_.empty();
    if (!read.table && !is_fresh) {
      state_->epochs_damaged = true;
      LogWarn(
          "store {}: both copies of the erase epochs are damaged: named tenants get nothing "
          "until `quire store repair`",
          options_.directory);
      return {};
    }
    const EpochTable table = read.table.value_or(EpochTable());
    if (!state_->ReserveEpochs(table.epochs.size())) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("store {}: a cap of {} bytes leaves no room for two segments beside "
                              "what {} tenants erased",
                              options_.directory, options_.bytes_cap, table.epochs.size()));
    }
    const std::vector<std::byte> bytes = EncodeEpochs(table);
    Result<void> written;
    for (size_t i = 0; i < epoch_files_.size(); ++i) {
      if (auto opened = OpenEpochFile(i, read.images[i], table.version, bytes); !opened) {
        written = std::unexpected(std::move(opened).error());
      }
    }
    state_->epochs.Start(table);
    // With one of them the store goes on; nothing can be erased before there are two.
    if (!epoch_files_[0] && !epoch_files_[1]) return written;
    return {};
  }

  // A copy that is as it should be is gone on with; a new file replaces any other.
  Result<void> OpenEpochFile(size_t copy, const std::optional<EpochImage>& image, uint64_t version,
                             std::span<const std::byte> table) {
    // What a crash left of one that was to replace it.
    static_cast<void>(files_.Remove(PathOf(std::string(kEpochNames[copy]) + ".new")));
    if (image && image->is_whole && image->table.version == version) {
      const auto file = OpenFile(kEpochNames[copy], {});
      // The process before was killed, or its sync failed: what was read may not be on the disk.
      if (file && files_.Sync(*file)) {
        epoch_files_[copy] = {.file = *file,
                              .version = version,
                              .bytes = image->bytes,
                              .changes = image->is_old ? kTakesNoChanges : image->changes,
                              .checksum = image->checksum};
        return {};
      }
    }
    const auto file = ReplaceEpochFile(files_, options_.directory, copy, table);
    if (!file) {
      LogWarn("store {}: {} is damaged, and cannot be replaced: {}", options_.directory,
              kEpochNames[copy], file.error().message);
      return std::unexpected(file.error());
    }
    opened_.push_back(*file);
    epoch_files_[copy] = {
        .file = *file, .version = version, .bytes = table.size(), .checksum = EpochChecksum(table)};
    return {};
  }

  void ReadCatalogue(uint64_t bytes_max) {
    const Catalogue::Options options = {.directory = options_.directory, .bytes_max = bytes_max};
    for (const bool again : {false, true}) {
      auto catalogue = Catalogue::Open(files_, options);
      auto rows =
          catalogue ? (*catalogue)->Read(recovery_.damaged) : std::unexpected(catalogue.error());
      if (rows) {
        catalogue_ = std::move(*catalogue);
        recovery_.catalogue_rebuilt = again || (rows->empty() && !segments_.empty());
        for (CatalogueRow& row : *rows) {
          // Also of what was lost.
          state_->generation = std::max(state_->generation, row.generation);
          rows_[row.segment] = std::move(row);
        }
        return;
      }
      LogWarn("store {}: the catalogue is made anew: {}", options_.directory, rows.error().message);
      if (catalogue) catalogue->reset();
      Catalogue::Remove(files_, options_.directory);
      state_->directory_stale = true;
    }
  }

  // True when a row may stand for what a segment holds up to its tail.
  bool Describes(const CatalogueRow& row, uint64_t generation) const {
    if (Planted(Canary::kTrustCatalogue)) return true;
    if (row.generation != generation || row.tail > segment_bytes_) return false;
    return std::ranges::all_of(row.entries, [&](const ColdEntry& entry) {
      return (uint64_t{entry.page} + entry.pages) * kRecordAlignment <= row.tail;
    });
  }

  void FindRecords() {
    for (const auto& [number, file] : segments_) {
      Found found = {.number = number};
      const auto row = rows_.find(number);
      if (row != rows_.end() && Describes(row->second, generations_[number])) {
        found.described = true;
        found.row = std::move(row->second);
        recovery_.records_from_catalogue += found.row.entries.size();
      } else {
        found.row.segment = number;
      }
      if (!found.row.sealed) {
        if (const auto scanned = ScanFrom(found, file); !scanned) {
          LoseSegment(number, scanned.error().message);
          std::erase(opened_, file);
          files_.Close(file);
          continue;
        }
      }
      found_.push_back(std::move(found));
    }
  }

  Result<void> ScanFrom(Found& found, FileId file) {
    CatalogueRow& row = found.row;
    // A process that was killed may have left records that a power cut would still take:
    // a process that finds them takes them for durable.
    QUIRE_TRY(files_.Sync(file));
    QUIRE_ASSIGN(SegmentScan scan, ScanSegment(files_, file, found.number, row.tail, segment_bytes_,
                                               ScanDepth::kHeaders, looked_through_.memory()));
    ++recovery_.segments_scanned;
    found.scanned = true;
    found.blank_begin = scan.blank_begin;
    // Behind the tail of a row lie newer records of the same generation, or old ones.
    if (row.tail > 0 && scan.generation != row.generation) return {};
    found.gaps = std::move(scan.gaps);
    state_->may_have_more |= !found.gaps.empty() || !scan.unreadable.empty();
    recovery_.damaged += scan.unreadable.size();
    row.generation = scan.generation;
    // A segment of voids alone has no owner yet.
    const bool is_free = row.tail == 0 && scan.records.empty() && found.gaps.empty();
    row.tail = is_free ? 0 : scan.tail;
    for (const RecordSummary& record : scan.records) {
      if (row.entries.empty()) {
        row.publisher = record.publisher;
        row.erase_epoch = record.erase_epoch;
      }
      if (record.publisher != row.publisher || record.erase_epoch != row.erase_epoch) continue;
      if (!IsWhole(file, record)) {
        found.gaps.push_back({.offset = record.location.offset, .bytes = record.record_bytes()});
        continue;
      }
      row.entries.push_back(
          {.key = PrefixOf(record.key),
           .segment = found.number,
           .page = static_cast<uint32_t>(record.location.offset / kRecordAlignment),
           .pages = static_cast<uint32_t>(record.record_bytes() / kRecordAlignment),
           .used = 0,
           .next = static_cast<uint32_t>(std::min<uint64_t>(record.block_index, UINT32_MAX))});
      if (record.block_index == 0 && record.parent != Digest{}) {
        row.roots.push_back({.key = record.parent, .block_tokens = record.token_count});
      }
      ++recovery_.records_found;
      const bool may_be_torn = record.location.offset + InFlightBytes() >= row.tail;
      if (recovery_.catalogue_rebuilt && may_be_torn) found.last.push_back(record);
    }
    return {};
  }

  // What was being written when a process died may have its header only. That is little, and is
  // read; without a catalogue it would be everything, and only the ends are read, see CheckEnds.
  bool IsWhole(FileId file, const RecordSummary& record) {
    return recovery_.catalogue_rebuilt || IsGood(file, record);
  }

  // What the disk does not give at the moment is found out when it is loaded.
  bool IsGood(FileId file, const RecordSummary& record) {
    const auto good =
        Patiently([&] { return VerifyRecord(files_, file, record, looked_through_.memory()); });
    return good.value_or(true);
  }

  uint64_t InFlightBytes() const {
    return state_->write_staging.chunks() * state_->write_staging.chunk_bytes();
  }

  // Of each publisher the last bytes, newest first, as many as can have been in flight.
  void CheckEnds() {
    std::map<PublisherId, uint64_t> left;
    std::ranges::sort(found_, {}, [](const Found& found) { return found.row.generation; });
    for (Found& found : std::views::reverse(found_)) {
      uint64_t& bytes = left.try_emplace(found.row.publisher, InFlightBytes()).first->second;
      for (const RecordSummary& record : std::views::reverse(found.last)) {
        if (bytes == 0) break;
        bytes -= std::min(bytes, record.record_bytes());
        const FileId file = state_->segments[found.number].file;
        if (IsGood(file, record)) continue;
        found.gaps.push_back({.offset = record.location.offset, .bytes = record.record_bytes()});
        const auto page = static_cast<uint32_t>(record.location.offset / kRecordAlignment);
        std::erase_if(found.row.entries,
                      [&](const ColdEntry& entry) { return entry.page == page; });
        --recovery_.records_found;
      }
    }
  }

  // A record of an epoch that the table does not know yet: the table is an old copy.
  void DistrustOldEpochs() {
    for (const Found& found : found_) {
      const bool newer = !found.row.entries.empty() &&
                         found.row.erase_epoch > state_->epochs.Of(found.row.publisher);
      if (!newer || state_->epochs_damaged) continue;
      state_->epochs_damaged = true;
      LogWarn(
          "store {}: the erase epochs are older than what it holds: named tenants get nothing "
          "until `quire store repair`",
          options_.directory);
    }
  }

  void EnterSegments() {
    // By generation, so that what has no recorded use is ordered by age.
    std::ranges::sort(found_, {}, [](const Found& found) { return found.row.generation; });
    for (const Found& found : found_) {
      for (const ColdEntry& entry : found.row.entries) {
        state_->uses.GoOnFrom(entry.used);
      }
    }
    for (Found& found : found_) {
      for (ColdEntry& entry : found.row.entries) {
        // What was scanned has its block index there.
        if (entry.used == 0) entry.used = state_->uses.Use(entry.next);
      }
    }
    // The newest first: of two records of one key the older may be half overwritten.
    for (Found& found : std::views::reverse(found_)) EnterSegment(found);
    for (const Found& found : found_) EnterRoots(found);
    for (const Found& found : found_) ResumeLast(found);
  }

  void EnterSegment(Found& found) {
    Segment& segment = state_->segments[found.number];
    const CatalogueRow& row = found.row;
    state_->generation = std::max(state_->generation, row.generation);
    segment.catalogue_stale = found.scanned || rows_.contains(found.number);
    recovery_.damaged += found.gaps.size();
    // A row is of this owner's time, in which others' bytes only become fewer.
    const bool is_clean = found.scanned ? found.blank_begin <= row.tail : row.clean;
    if (!is_clean) segment.leftovers = {{.publisher = std::nullopt, .end = segment_bytes_}};
    if (row.tail == 0) return;  // free
    segment.state = SegmentState::kSealed;
    segment.publisher = row.publisher;
    segment.erase_epoch = row.erase_epoch;
    state_->stored.insert(row.publisher);
    segment.generation = row.generation;
    segment.tail = segment.end = row.tail;
    // The last one first: of two records of one key the older was damaged, or written anew. It must
    // not come back when the newer one has gone.
    for (const ColdEntry& entry : std::views::reverse(row.entries)) {
      if (state_->index.Insert(entry)) {
        state_->CountIn(entry);
      } else {
        found.gaps.push_back(
            {.offset = entry.page * kRecordAlignment, .bytes = entry.pages * kRecordAlignment});
      }
    }
    for (const Gap& gap : found.gaps) {  // said so once, it is not looked at again
      const auto written = WriteVoid(
          files_, segment.file,
          {.segment = found.number, .offset = gap.offset, .generation = found.row.generation},
          gap.bytes);
      if (!written) LogWarn("store {}: {}", options_.directory, written.error().message);
    }
    if (state_->Serves(row.publisher, row.erase_epoch)) return;
    if (state_->epochs_damaged) {
      state_->index.Hide(found.number);
    } else {
      discarded_.push_back(found.number);
    }
  }

  // What a block has as its parent is not a root: then it is the block's twins.
  void EnterRoots(const Found& found) {
    const Segment& segment = state_->segments[found.number];
    if (segment.state != SegmentState::kSealed) return;
    for (const RecordRoot& root : found.row.roots) {
      if (state_->index.Find(PrefixOf(root.key))) continue;
      state_->roots.Add(found.number, segment.publisher, root);
    }
  }

  // Each publisher goes on in its newest segment.
  void ResumeLast(const Found& found) {
    Segment& segment = state_->segments[found.number];
    // Appending to what the catalogue called sealed would be invisible to a process that
    // reads an old catalogue after a power cut.
    // Where this one does not know the segment, another one may: one that was removed comes back
    // with a power cut.
    if (found.row.sealed || !found.described) return;
    if (segment.state != SegmentState::kSealed || segment.tail >= segment_bytes_) return;
    if (!state_->Serves(segment.publisher, segment.erase_epoch)) return;
    for (const Found& other : found_) {
      const Segment& newer = state_->segments[other.number];
      if (newer.publisher == segment.publisher && newer.generation > segment.generation) return;
    }
    segment.state = SegmentState::kActive;
    resumed_.push_back(found.number);
  }

  // The cap may be lower than it was.
  void RemoveBeyondCap() {
    SegmentTable& segments = state_->segments;
    while (segments.files() > segments.segments_max()) {
      uint32_t least = segments.size();
      for (uint32_t i = segments.size(); i-- > 0;) {
        if (!segments[i].has_file()) continue;
        if (least == segments.size() || segments[i].Recency() < segments[least].Recency())
          least = i;
      }
      if (least == segments.size()) return;  // the others cannot be used, nor removed
      state_->stats.evicted += state_->ForgetSegment(least);
      std::erase(resumed_, least);
      std::erase(discarded_, least);
      std::erase(opened_, segments[least].file);
      files_.Close(segments[least].file);
      const auto removed = files_.Remove(PathOf(SegmentName(least)));
      if (!removed) LogWarn("store {}: {}", options_.directory, removed.error().message);
      segments[least] = {.state = removed ? SegmentState::kMissing : SegmentState::kLost,
                         .catalogue_stale = true};
      state_->directory_stale = true;
    }
  }

  std::unique_ptr<ColdStore> Finish() {
    RestoreLengths();
    state_->stats.bytes = state_->segments.files() * segment_bytes_;
    state_->sequence = state_->generation;  // it only says in which order records were written
    store_ = std::unique_ptr<ColdStore>(new ColdStore(std::move(state_), lock_, epoch_files_));
    store_->catalogue_ = std::move(catalogue_);
    store_->recovery_ = recovery_;
    for (const uint32_t number : resumed_) store_->writer_.Resume(number);
    for (const uint32_t number : discarded_) store_->eraser_.Discard(number);
    WipeLeftovers();
    store_->WriteCatalogue();
    store_->PublishStats();
    opened_.clear();
    return std::move(store_);
  }

  // An erasure may have been durable when the last process stopped, and not all of it overwritten.
  void WipeLeftovers() {
    const ColdState& state = *store_->state_;
    if (!state.MayBeErased()) return;
    for (uint32_t i = 0; i < state.segments.size(); ++i) {
      const Segment& segment = state.segments[i];
      if (segment.LeftoverEnd() > segment.end) store_->eraser_.WipeLeftovers(i);
    }
  }

  // Every segment has its room on the disk, and none more.
  void RestoreLengths() {
    for (uint32_t i = 0; i < state_->segments.size(); ++i) {
      const Segment& segment = state_->segments[i];
      if (!segment.has_file()) continue;
      const auto length = files_.Length(segment.file);
      if (length && *length == segment_bytes_) continue;
      const auto resized = files_.Resize(segment.file, segment_bytes_);
      if (!resized) LogWarn("store {}: {}", options_.directory, resized.error().message);
    }
  }

  ColdOptions options_;
  Files& files_;
  const Clock& clock_;
  const StoreKeys& caller_keys_;
  std::unique_ptr<keys::KeyRing> keys_;
  uint64_t segment_bytes_ = 0;
  uint64_t opens_ = 0;
  FileId lock_;
  std::array<std::optional<EpochFile>, 2> epoch_files_;
  std::vector<FileId> opened_;                          // closed when opening fails
  std::vector<std::pair<uint32_t, FileId>> segments_;   // that have a file
  std::vector<std::pair<uint32_t, std::string>> lost_;  // whose file cannot be opened, and why
  std::map<uint32_t, uint64_t> generations_;            // of their first records
  std::map<uint32_t, CatalogueRow> rows_;
  std::vector<Found> found_;
  std::vector<uint32_t> resumed_;
  std::vector<uint32_t> discarded_;
  std::unique_ptr<ColdState> state_;
  std::unique_ptr<Catalogue> catalogue_;
  std::unique_ptr<ColdStore> store_;
  ColdRecovery recovery_;
  Staging looked_through_{uint64_t{1} << 20, 1};  // what is read to be looked at, and forgotten
};

uint64_t ColdStore::FitRecords(uint64_t record_bytes) {
  const ColdState& state = *state_;
  if (record_bytes > state.segments.record_bytes_max() && state.segments.files() == 0) {
    const auto cut = CutAnew(record_bytes);
    if (!cut) LogWarn("store {}: {}", state.options.directory, cut.error().message);
  }
  return std::min(state.segments.record_bytes_max(),
                  state.write_staging.chunks() * state.write_staging.chunk_bytes());
}

// Two records in a segment where the cap has room for that, else one. The lock file says it before
// there is a segment, in the copy that is not the newest: a generation is never given twice.
Result<void> ColdStore::CutAnew(uint64_t record_bytes) {
  for (const uint64_t records : {2, 1}) {
    ColdOptions longer = state_->options;
    longer.segment_bytes = RoundUp(records * record_bytes, kRecordAlignment) + kRecordAlignment;
    const auto sizes = ResolveSizes(longer);
    if (!sizes) continue;
    const uint64_t others = sizes->catalogue_bytes_max + kLockBytesMax +
                            EpochBytesMax(state_->epochs.publishers()) + longer.bytes_beside;
    if (longer.bytes_cap - others < 2 * longer.segment_bytes) continue;
    const uint64_t opens = (state_->generation >> kGenerationBits) + 1;
    QUIRE_TRY(WriteLockText(
        state_->files, lock_,
        {.opens = opens, .bytes_cap = longer.bytes_cap, .segment_bytes = longer.segment_bytes}));
    state_->generation = opens << kGenerationBits;
    state_->segments.Cut(longer.segment_bytes, sizes->segments_max);
    state_->ReserveEpochs(state_->epochs.publishers());
    return {};
  }
  return Fail(
      ErrorCode::kInvalidArgument,
      fmt::format("a cap of {} bytes has no room for two segments with a record of {} bytes",
                  state_->options.bytes_cap, record_bytes));
}

Result<std::unique_ptr<ColdStore>> ColdStore::Open(const ColdOptions& options, Files& files,
                                                   const Clock& clock, const StoreKeys& keys) {
  return ColdOpener(options, files, clock, keys).Open();
}

}  // namespace quire::tier

// The cold tier: records in segment files of a local disk, under a hard cap, found again after a
// restart. docs/durability.md says what a crash may lose and what it never does.
#ifndef QUIRE_TIER_COLD_H_
#define QUIRE_TIER_COLD_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "tier/catalogue.h"
#include "tier/cold_eraser.h"
#include "tier/cold_reader.h"
#include "tier/cold_renewer.h"
#include "tier/cold_state.h"
#include "tier/cold_writer.h"
#include "tier/store.h"

namespace quire::tier {

/// What opening a store found.
struct ColdRecovery {
  bool catalogue_rebuilt = false;  // it was missing or damaged
  uint64_t segments_scanned = 0;   // whose headers were read, wholly or from where they ended
  uint64_t records_found = 0;      // by scanning
  uint64_t records_from_catalogue = 0;
  uint64_t damaged = 0;  // stretches of segments and rows of the catalogue
};

class ColdStore final : public Store {
 public:
  /// Opens the store in a directory, or makes one. `files` and `clock` must outlive it.
  ///
  /// Errors:  kInvalidArgument (ResolveSizes); kBusy another process has it; kUnsupported it was
  ///          written by a newer version; kNoSpace; kIo; with keys what KeyRing::Open says, and
  ///          kInvalidArgument keys for a store that is not encrypted, or none for one that is
  /// Cost:    reads the catalogue, one page of every segment, and the headers of segments that the
  ///          catalogue does not describe; of payload only what was being written at the end
  static Result<std::unique_ptr<ColdStore>> Open(const ColdOptions& options, Files& files,
                                                 const Clock& clock, const StoreKeys& keys = {});
  /// Waits for what the disk works on. What is not durable yet may be lost: call Flush before.
  ~ColdStore() override;

  void Put(std::span<const PutRequest> requests) override;
  void Find(std::span<const Digest> keys, std::span<Presence> out) const override;
  void Touch(std::span<const RecordUse> uses, std::span<Presence> out) override;
  std::vector<RecordRoot> RootsOf(const PublisherId& publisher) const override;
  void SetLimits(const PublisherLimits& limits) override;
  uint64_t FitRecords(uint64_t record_bytes) override;
  void Get(std::span<const LoadRequest> loads, uint64_t deadline_us) override;
  void Cancel(uint64_t tag) override;
  void Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) override;
  uint64_t EpochOf(const PublisherId& publisher) const override {
    return state_->epochs.Of(publisher);
  }
  void Remove(const Digest& key, uint64_t tag) override;
  std::optional<uint64_t> RecordBytesOf(const Digest& key) const override;
  void Flush(uint64_t tag) override;
  void Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) override;
  StoreStats Stats() const override;
  PublisherUsage UsageOf(const PublisherId& publisher) const override;

  /// Length of every segment: what the store was made with.
  uint64_t segment_bytes() const { return state_->segments.segment_bytes(); }
  /// Of the longest record that fits.
  uint64_t record_bytes_max() const { return state_->segments.record_bytes_max(); }
  const ColdRecovery& recovery() const { return recovery_; }

  // For SealedStore, which gives it what it keeps.

  /// Null: it was opened without keys. With them it seals what it is given, and opens it.
  keys::KeyRing* keys() { return state_->keys.get(); }
  /// That have segments.
  std::vector<PublisherId> publishers() const;
  /// What a publisher stores from now on is in segments of a higher generation than this.
  uint64_t CloseSegment(const PublisherId& publisher);
  /// The lowest generation of segments that have records of a publisher; none: the highest number.
  uint64_t OldestGenerationOf(const PublisherId& publisher) const;
  /// What a publisher has in segments up to this generation is sealed anew in the background.
  void Renew(const PublisherId& publisher, uint64_t generation);

 private:
  friend class ColdOpener;
  static constexpr uint64_t kCatalogueWaitUs = 30'000'000;
  static constexpr uint64_t kCatalogueWaitUsMax = 3'600'000'000;

  struct Flushing {
    uint64_t tag = 0;
    uint64_t commit = 0;
    uint64_t failures = 0;  // of the eraser before it
    bool awaits_eraser = false;
  };

  ColdStore(std::unique_ptr<ColdState> state, FileId lock,
            const std::array<std::optional<EpochFile>, 2>& epochs);
  Result<void> CutAnew(uint64_t record_bytes);
  size_t Dispatch(uint64_t wait_us);
  void Advance();
  void WriteCatalogue();
  bool OpenCatalogue();
  Result<void> WriteStale();
  void DropCatalogue(const Error& error);
  void EndFlushes();
  void Scrub(uint64_t now_us);
  void PublishStats();

  std::unique_ptr<ColdState> state_;
  FileId lock_;
  std::unique_ptr<Catalogue> catalogue_;           // null: for now it goes without
  uint64_t catalogue_retry_us_ = 0;                // then it is made again
  uint64_t catalogue_wait_us_ = kCatalogueWaitUs;  // before that, doubled each time
  ColdWriter writer_;
  ColdReader reader_;
  ColdEraser eraser_;
  ColdRemover remover_;
  ColdRenewer renewer_;
  ColdRecovery recovery_;
  std::vector<Flushing> flushing_;
  uint64_t catalogue_commit_ = 0;  // commits that it has

  uint64_t scrub_due_us_ = 0;
  uint32_t scrub_segment_ = 0;
  std::vector<ColdEntry> scrub_entries_;  // of that segment, still to be read, last first

  std::array<uint64_t, 5> usage_mark_{};
  mutable Mutex mutex_{LockRank::kLeaf};
  StoreStats published_ QUIRE_GUARDED_BY(mutex_);
  std::map<PublisherId, PublisherUsage> published_usage_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_H_

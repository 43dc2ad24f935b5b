#include "tier/cold.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace quire::tier {

ColdStore::ColdStore(std::unique_ptr<ColdState> state, FileId lock,
                     const std::array<std::optional<EpochFile>, 2>& epochs)
    : state_(std::move(state)),
      lock_(lock),
      writer_(*state_),
      reader_(*state_),
      eraser_(*state_, epochs),
      remover_(*state_, writer_),
      renewer_(*state_, reader_, writer_) {}

ColdStore::~ColdStore() {
  // The disk may still read from and write to the staging.
  while (state_->files.in_flight() > 0) Dispatch(1000);
  catalogue_.reset();
  for (uint32_t i = 0; i < state_->segments.size(); ++i) {
    if (state_->segments[i].has_file()) state_->files.Close(state_->segments[i].file);
  }
  eraser_.CloseFiles();
  state_->files.Close(lock_);
}

void ColdStore::Put(std::span<const PutRequest> requests) {
  for (const PutRequest& request : requests) {
    // The first record of a publisher that had none when it was erased: its epoch becomes durable
    // now. That is waited for, as it happens once.
    const PublisherId& publisher = request.identity.publisher;
    const uint64_t failures = eraser_.failures();
    bool waits = !state_->epochs.IsKept(publisher) && state_->KeepEpoch(publisher);
    while (waits) {
      eraser_.Tick(state_->clock.NowMicros());
      waits = state_->stats.in_flight > 0 && !state_->epochs.IsSaved(publisher) &&
              eraser_.failures() == failures;
      if (waits) Dispatch(1000);
    }
    writer_.Put(request);
  }
  PublishStats();
}

void ColdStore::Find(std::span<const Digest> keys, std::span<Presence> out) const {
  state_->index.Find(keys, out);
}

void ColdStore::Touch(std::span<const RecordUse> uses, std::span<Presence> out) {
  for (size_t i = 0; i < uses.size(); ++i) {
    const bool there = state_->Use(PrefixOf(uses[i].key), uses[i].block_index);
    out[i] = there ? Presence::kPresent : Presence::kAbsent;
  }
}

std::vector<RecordRoot> ColdStore::RootsOf(const PublisherId& publisher) const {
  return state_->roots.Of(publisher);
}

void ColdStore::SetLimits(const PublisherLimits& limits) { state_->segments.SetLimits(limits); }

void ColdStore::Get(std::span<const LoadRequest> loads, uint64_t deadline_us) {
  for (const LoadRequest& load : loads) reader_.Get(load, deadline_us);
}

void ColdStore::Cancel(uint64_t tag) { reader_.Cancel(tag); }

void ColdStore::Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) {
  if (epoch > state_->epochs.Of(publisher)) writer_.Close(publisher);
  eraser_.Erase(publisher, epoch, tag);
  PublishStats();
}

void ColdStore::Remove(const Digest& key, uint64_t tag) { remover_.Remove(key, tag); }

std::optional<uint64_t> ColdStore::RecordBytesOf(const Digest& key) const {
  const auto entry = state_->index.Find(PrefixOf(key));
  if (!entry) return std::nullopt;
  return entry->pages * kRecordAlignment;
}

void ColdStore::Flush(uint64_t tag) {
  flushing_.push_back(
      {.tag = tag, .commit = writer_.commit_of_now(), .failures = eraser_.failures()});
}

void ColdStore::Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) {
  Dispatch(0);
  Advance();
  if (state_->done.empty() && wait_us > 0 && Dispatch(wait_us) > 0) Advance();
  done.insert(done.end(), state_->done.begin(), state_->done.end());
  state_->done.clear();
  PublishStats();
}

size_t ColdStore::Dispatch(uint64_t wait_us) {
  std::array<IoCompletion, 32> some;
  size_t total = 0;
  size_t count = 0;
  do {
    count = state_->files.Complete(some, total == 0 ? wait_us : 0);
    for (const IoCompletion& completion : std::span(some).first(count)) {
      --state_->stats.in_flight;
      const auto number = static_cast<uint32_t>(completion.tag);
      switch (static_cast<IoOwner>(completion.tag >> 32)) {
        case IoOwner::kWriter: writer_.OnIo(number, completion); break;
        case IoOwner::kReader: reader_.OnIo(number, completion); break;
        case IoOwner::kEraser: eraser_.OnIo(number, completion); break;
        case IoOwner::kRemover: remover_.OnIo(number, completion); break;
      }
    }
    total += count;
  } while (count == some.size());
  return total;
}

void ColdStore::Advance() {
  const uint64_t now_us = state_->clock.NowMicros();
  reader_.Tick(now_us);
  const bool flush = std::ranges::any_of(
      flushing_, [&](const Flushing& f) { return f.commit > writer_.commits_done(); });
  writer_.Tick(now_us, flush);
  for (const uint32_t failed : writer_.TakeFailed()) eraser_.WipeLeftovers(failed);
  for (const ColdEntry& stale : writer_.TakeStale()) remover_.RemoveAt(stale);
  eraser_.Tick(now_us);
  remover_.Tick();
  renewer_.Tick(now_us);
  WriteCatalogue();
  EndFlushes();
  Scrub(now_us);
}

void ColdStore::WriteCatalogue() {
  if (catalogue_ == nullptr && !OpenCatalogue()) return;
  const auto written = WriteStale();
  if (!written) return DropCatalogue(written.error());
  catalogue_wait_us_ = kCatalogueWaitUs;
}

// What kept it from being written may be over: it is made anew with all that there is.
bool ColdStore::OpenCatalogue() {
  if (state_->clock.NowMicros() < catalogue_retry_us_) return false;
  const auto sizes = ResolveSizes(state_->options);
  auto opened = Catalogue::Open(state_->files, {.directory = state_->options.directory,
                                                .bytes_max = sizes->catalogue_bytes_max});
  if (!opened) {
    DropCatalogue(opened.error());
    return false;
  }
  catalogue_ = *std::move(opened);
  SegmentTable& segments = state_->segments;
  for (uint32_t i = 0; i < segments.size(); ++i) segments[i].catalogue_stale = true;
  return true;
}

// All of it or nothing: `quire store verify` takes what a catalogue lacks for unconfirmed.
Result<void> ColdStore::WriteStale() {
  SegmentTable& segments = state_->segments;
  bool begun = !catalogue_->is_whole();
  bool dropped = false;
  if (begun) QUIRE_TRY(catalogue_->Begin());
  for (uint32_t i = 0; i < segments.size(); ++i) {
    Segment& segment = segments[i];
    if (!segment.catalogue_stale) continue;
    if (!std::exchange(begun, true)) QUIRE_TRY(catalogue_->Begin());
    segment.catalogue_stale = false;
    const bool holds =
        segment.state == SegmentState::kActive || segment.state == SegmentState::kSealed;
    // Sealed says that nothing lies behind the tail: not while a commit is under way.
    const bool sealed = segment.state == SegmentState::kSealed && segment.writes == 0;
    QUIRE_TRY(holds ? catalogue_->Put({.segment = i,
                                       .publisher = segment.publisher,
                                       .erase_epoch = segment.erase_epoch,
                                       .generation = segment.generation,
                                       .tail = segment.tail,
                                       .sealed = sealed,
                                       .clean = sealed && segment.LeftoverEnd() == segment.end,
                                       .roots = state_->roots.OfSegment(i),
                                       .entries = remover_.EntriesOf(i)})
                    : catalogue_->Drop(i));
    dropped |= !holds;
  }
  if (begun) QUIRE_TRY(catalogue_->Commit());
  return dropped ? catalogue_->Purge() : Result<void>();
}

// The records are in the segments: only a start meanwhile takes longer.
void ColdStore::DropCatalogue(const Error& error) {
  LogWarn("store {}: going on without a catalogue, it is made again in {} s: {}",
          state_->options.directory, catalogue_wait_us_ / 1'000'000, error.message);
  catalogue_.reset();
  Catalogue::Remove(state_->files, state_->options.directory);
  catalogue_retry_us_ = state_->clock.NowMicros() + catalogue_wait_us_;
  catalogue_wait_us_ = std::min(2 * catalogue_wait_us_, kCatalogueWaitUsMax);
}

void ColdStore::EndFlushes() {
  std::erase_if(flushing_, [&](Flushing& f) {
    const bool failed = eraser_.failures() > f.failures;
    const bool overwritten = eraser_.idle();
    // What was overwritten ends where a segment's owner goes on, with bytes that may be on their
    // way still.
    if (overwritten && f.awaits_eraser) f.commit = writer_.commit_of_now();
    f.awaits_eraser = !overwritten;
    if (f.commit > writer_.commits_done() || !remover_.idle()) return false;
    if (!overwritten && !failed) return false;
    const bool hides = state_->MayHideErased();
    if (hides) {
      LogWarn(
          "store {}: what was erased may lie in {}: it is overwritten when the store is opened and "
          "they can be, or see `quire store repair`",
          state_->options.directory,
          state_->segments.HasLost() ? "segments that cannot be used"
                                     : "what is there of tenants, as the epochs cannot be read");
    }
    state_->End(f.tag, failed || hides ? StoreOutcome::kIo : StoreOutcome::kOk);
    return true;
  });
}

void ColdStore::Scrub(uint64_t now_us) {
  const uint64_t rate = state_->options.scrub_bytes_per_s;
  if (rate == 0 || reader_.scrubbing() || now_us < scrub_due_us_) return;
  if (scrub_entries_.empty()) {
    if (state_->segments.size() == 0) return;
    scrub_segment_ = (scrub_segment_ + 1) % state_->segments.size();
    if (state_->segments[scrub_segment_].state == SegmentState::kSealed) {
      scrub_entries_ = state_->index.EntriesOf(scrub_segment_);
    }
    // An empty store must not look for work all the time.
    if (scrub_entries_.empty()) scrub_due_us_ = now_us + 10'000;
    return;
  }
  const ColdEntry entry = scrub_entries_.back();
  scrub_entries_.pop_back();
  const auto still = state_->index.Find(entry.key);
  if (!still || still->segment != entry.segment || still->page != entry.page) return;
  reader_.Scrub(*still);
  scrub_due_us_ = now_us + entry.pages * kRecordAlignment * 1'000'000 / rate;
}

std::vector<PublisherId> ColdStore::publishers() const {
  std::vector<PublisherId> publishers;
  for (const auto& [publisher, usage] : state_->segments.Usage()) publishers.push_back(publisher);
  return publishers;
}

uint64_t ColdStore::CloseSegment(const PublisherId& publisher) {
  writer_.Close(publisher);
  return state_->generation;
}

// A segment that was closed is gone on with where a process ended before the catalogue knew of it.
void ColdStore::Renew(const PublisherId& publisher, uint64_t generation) {
  const auto active = state_->segments.ActiveOf(publisher);
  if (active && state_->segments[*active].generation <= generation) writer_.Close(publisher);
  renewer_.Renew(publisher, generation);
}

uint64_t ColdStore::OldestGenerationOf(const PublisherId& publisher) const {
  uint64_t oldest = ~uint64_t{0};
  for (uint32_t i = 0; i < state_->segments.size(); ++i) {
    const Segment& segment = state_->segments[i];
    const bool holds =
        segment.state == SegmentState::kActive || segment.state == SegmentState::kSealed;
    const bool is_empty = segment.records == 0 && segment.reads == 0 && segment.writes == 0;
    if (!holds || is_empty || segment.publisher != publisher) continue;
    oldest = std::min(oldest, segment.generation);
  }
  return oldest;
}

StoreStats ColdStore::Stats() const {
  MutexLock lock(mutex_);
  return published_;
}

PublisherUsage ColdStore::UsageOf(const PublisherId& publisher) const {
  MutexLock lock(mutex_);
  const auto found = published_usage_.find(publisher);
  return found == published_usage_.end() ? PublisherUsage{} : found->second;
}

void ColdStore::PublishStats() {
  StoreStats& stats = state_->stats;
  stats.records = state_->index.records();
  stats.epochs_damaged = state_->epochs_damaged;
  // When any publisher's records come or go, one of these numbers changes.
  const std::array<uint64_t, 5> mark = {state_->generation, stats.records, stats.bytes_live,
                                        stats.bytes_erased,
                                        stats.puts[static_cast<size_t>(StoreOutcome::kOk)]};
  const bool usage_changed = mark != usage_mark_;
  std::map<PublisherId, PublisherUsage> usage;
  if (usage_changed) usage = state_->segments.Usage();
  usage_mark_ = mark;
  stats.memory_bytes = state_->index.memory_bytes() + state_->write_staging.memory().size() +
                       state_->read_staging.memory().size() + state_->headers.memory_bytes();
  MutexLock lock(mutex_);
  published_ = stats;
  if (usage_changed) published_usage_.swap(usage);
}

}  // namespace quire::tier

#include "tier/cold_eraser.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/canary.h"
#include "base/log.h"

namespace quire::tier {
namespace {

constexpr uint64_t kPagesFailedMax = 64;  // of a segment; the rest of it is tried later

}  // namespace

ColdEraser::ColdEraser(ColdState& state, const std::array<std::optional<EpochFile>, 2>& copies)
    : state_(state), saver_(state, copies), zeros_(state.options.chunk_bytes, 1) {
  std::ranges::fill(zeros_.memory(), std::byte{0});
}

// Where the epochs are damaged, or there is no room for one more, a restart will not know of it.
// What is there goes all the same, and for good once it is overwritten.
void ColdEraser::Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) {
  const bool damaged = state_.epochs_damaged;
  // A publisher that never stored anything has nothing that could come back. What lies behind a
  // segment's owner can: of the writes that overwrite it, a power cut may take the first one alone.
  bool may_come_back = state_.may_have_more || state_.stored.contains(publisher);
  for (uint32_t i = 0; i < state_.segments.size() && !may_come_back; ++i) {
    may_come_back = state_.segments[i].MayHoldBehind(publisher);
  }
  bool full = false;
  if (epoch > state_.epochs.Of(publisher)) {
    full = may_come_back && !damaged && !state_.ReserveEpochs(state_.epochs.publishers() + 1);
    state_.epochs.Raise({.publisher = publisher, .epoch = epoch},
                        /*keep=*/may_come_back && !damaged && !full);
    for (uint32_t i = 0; i < state_.segments.size(); ++i) {
      const Segment& segment = state_.segments[i];
      const bool holds =
          segment.state == SegmentState::kActive || segment.state == SegmentState::kSealed;
      // Where the epochs are not known, none of them tells what may stay.
      const bool is_erased = damaged || segment.erase_epoch < epoch;
      if (holds && segment.publisher == publisher && is_erased) {
        Discard(i);
      } else if (segment.MayHoldBehind(publisher) && !IsWiping(i)) {
        WipeLeftovers(i);
      }
    }
    state_.write_staging.Forget();
    state_.read_staging.Forget();
    state_.headers.Forget();
  }
  if (damaged) return state_.End(tag, StoreOutcome::kUnknownEpoch);
  if (full) return state_.End(tag, StoreOutcome::kNoSpace);
  saver_.Add(tag);
}

void ColdEraser::Discard(uint32_t number) {
  state_.index.Hide(number);
  state_.segments[number].state = SegmentState::kErased;
  state_.segments[number].catalogue_stale = true;
  state_.stats.bytes_erased += state_.segments.segment_bytes();
  WipeLeftovers(number);
}

void ColdEraser::WipeLeftovers(uint32_t number) {
  if (Planted(Canary::kKeepLeftovers)) return;
  if (!std::exchange(state_.segments[number].to_wipe, true)) ++to_wipe_;
}

void ColdEraser::Tick(uint64_t now_us) {
  saver_.Tick(now_us);
  if (now_us < retry_us_) return;
  retry_us_ = 0;
  ShrinkToCap();
  StartWipe();
}

// The epochs need room that segments have. What a segment holds is overwritten before it goes.
void ColdEraser::ShrinkToCap() {
  if (state_.segments.files() <= state_.segments.segments_max()) return;
  const auto number = Dispensable();
  if (!number) return;
  Segment& segment = state_.segments[*number];
  if (segment.state != SegmentState::kFree || segment.to_wipe || !segment.leftovers.empty()) {
    state_.stats.evicted += state_.ForgetSegment(*number);
    return Discard(*number);
  }
  const auto removed = state_.files.Remove(state_.PathOf(SegmentName(*number)));
  if (!removed) {
    LogWarn("store {}: {}", state_.options.directory, removed.error().message);
    retry_us_ = state_.clock.NowMicros() + state_.options.commit_interval_us;
    return;
  }
  state_.files.Close(segment.file);
  segment = {.catalogue_stale = true};
  state_.directory_stale = true;
  state_.stats.bytes -= state_.segments.segment_bytes();
}

std::optional<uint32_t> ColdEraser::Dispensable() const {
  std::optional<uint32_t> least;
  bool is_one_coming = false;
  for (uint32_t i = 0; i < state_.segments.size(); ++i) {
    const Segment& segment = state_.segments[i];
    is_one_coming |= segment.state == SegmentState::kErased && segment.failures == 0;
    if (segment.reads > 0 || segment.writes > 0) continue;
    if (segment.state == SegmentState::kFree) return i;
    if (segment.state != SegmentState::kSealed) continue;
    if (!least || segment.Recency() < state_.segments[*least].Recency()) least = i;
  }
  return is_one_coming ? std::nullopt : least;
}

void ColdEraser::StartWipe() {
  if (wiping_ || to_wipe_ == 0) return;
  for (uint32_t i = 1; i <= state_.segments.size(); ++i) {
    const uint32_t number = (wiped_last_ + i) % state_.segments.size();
    const Segment& segment = state_.segments[number];
    const bool whole = segment.state == SegmentState::kErased;
    const bool alone = whole || segment.failed;
    if (!segment.to_wipe || (alone && (segment.reads > 0 || segment.writes > 0))) continue;
    wiped_last_ = number;
    // What comes up meanwhile is overwritten afterwards.
    state_.segments[number].to_wipe = false;
    --to_wipe_;
    // A scan takes the segment for that of the newest header in it, which lies at its front.
    wiping_ = {.number = number,
               .whole = whole,
               .front = whole ? kRecordAlignment : 0,
               .top = whole ? state_.segments.segment_bytes() : segment.LeftoverEnd(),
               .paged_until = state_.segments.segment_bytes()};
    if (whole) state_.ForgetSegment(number);
    return WipeStep();
  }
}

void ColdEraser::WipeStep() {
  Segment& segment = state_.segments[wiping_->number];
  const uint64_t bottom = wiping_->whole ? wiping_->front : segment.end;
  ++segment.writes;
  if (wiping_->top <= bottom) {
    wiping_->step_bytes = 0;
    return state_.Submit(IoOwner::kEraser, kWipeNumber,
                         {.kind = IoKind::kSync, .file = segment.file});
  }
  const uint64_t step =
      wiping_->top > wiping_->paged_until ? kRecordAlignment : zeros_.chunk_bytes();
  wiping_->step_bytes = std::min(wiping_->top - bottom, step);
  segment.wiping_from = wiping_->top - wiping_->step_bytes;
  state_.stats.bytes_written += wiping_->step_bytes;
  state_.Submit(IoOwner::kEraser, kWipeNumber,
                {.kind = IoKind::kWrite,
                 .file = segment.file,
                 .offset = segment.wiping_from,
                 .data = zeros_.memory().data(),
                 .bytes = wiping_->step_bytes});
}

void ColdEraser::OnIo(uint32_t number, const IoCompletion& completion) {
  return number == EpochSaver::kIoNumber ? saver_.OnIo(completion) : OnWiped(completion);
}

void ColdEraser::OnWiped(const IoCompletion& completion) {
  Segment& segment = state_.segments[wiping_->number];
  --segment.writes;
  segment.wiping_from = Segment::kNowhere;
  const bool failed = completion.error || completion.bytes != wiping_->step_bytes;
  if (wiping_->step_bytes == 0) {
    if (failed || wiping_->front == 0) return EndWipe(!failed && wiping_->pages_failed == 0);
    wiping_->front = 0;
    return WipeStep();
  }
  const uint64_t bottom = wiping_->top - wiping_->step_bytes;
  if (failed && wiping_->step_bytes > kRecordAlignment) {
    wiping_->paged_until = bottom;  // once more, so that only what is bad stays as it is
    return WipeStep();
  }
  wiping_->pages_failed += failed ? 1 : 0;
  if (wiping_->pages_failed > kPagesFailedMax) return EndWipe(false);
  wiping_->top = bottom;
  WipeStep();
}

void ColdEraser::EndWipe(bool wiped) {
  const Wiping wiping = *std::exchange(wiping_, std::nullopt);
  Segment& segment = state_.segments[wiping.number];
  if (!wiped) {
    ++segment.failures;
    ++failures_;
    retry_us_ = state_.clock.NowMicros() + state_.options.commit_interval_us;
    return WipeLeftovers(wiping.number);
  }
  segment.catalogue_stale = true;
  // Meanwhile a write failed, or what lies in front was erased: what is there is unknown.
  if (segment.to_wipe) return;
  segment.leftovers.clear();
  // Only now it is certain that all of it can be written.
  if (!wiping.whole) return;
  segment.failures = 0;
  segment.state = SegmentState::kFree;
  segment.end = 0;
  state_.stats.bytes_erased -= state_.segments.segment_bytes();
}

ColdRemover::ColdRemover(ColdState& state, const ColdWriter& writer)
    : state_(state), writer_(writer), pages_(kRecordAlignment, kBatchMax) {}

void ColdRemover::Remove(const Digest& key, uint64_t tag) {
  waiting_.push_back({.key = PrefixOf(key), .tag = tag});
}

void ColdRemover::RemoveAt(const ColdEntry& entry) {
  places_.push_back({.entry = entry, .generation = state_.segments[entry.segment].generation});
}

std::vector<ColdEntry> ColdRemover::EntriesOf(uint32_t segment) const {
  std::vector<ColdEntry> entries = state_.index.EntriesOf(segment);
  for (const Place& place : places_) {
    if (place.entry.segment == segment) entries.push_back(place.entry);
  }
  for (const Removal& removal : batch_) {
    if (!removal.tag && removal.entry.segment == segment) entries.push_back(removal.entry);
  }
  std::ranges::sort(entries, {}, &ColdEntry::page);
  return entries;
}

void ColdRemover::Tick() {
  if (!batch_.empty() && requests_ == 0) {
    if (!syncing_) SyncSegments();
    if (requests_ == 0) EndBatch();
  }
  if (batch_.empty()) StartBatch();
}

void ColdRemover::StartBatch() {
  std::erase_if(waiting_, [this](const Waiting& removal) { return Remove(removal); });
  // A load that began before the record left its place ends first.
  std::erase_if(places_, [this](const Place& place) {
    return state_.segments[place.entry.segment].reads == 0 && OverwriteAt(place);
  });
}

// Also at places that it has left, or it would be found there after a restart. False: later.
bool ColdRemover::Remove(const Waiting& removal) {
  if (writer_.IsWriting(removal.key)) return false;
  std::erase_if(places_, [&](const Place& place) {
    return place.entry.key == removal.key && OverwriteAt(place);
  });
  if (batch_.size() == kBatchMax) return false;
  const auto entry = state_.index.Find(removal.key);
  if (entry) {
    Overwrite(*entry, removal.tag);
  } else {
    state_.End(removal.tag, StoreOutcome::kAbsent);
  }
  return true;
}

// Unless its segment was written anew meanwhile, or is overwritten as a whole. False: later.
bool ColdRemover::OverwriteAt(const Place& place) {
  if (batch_.size() == kBatchMax) return false;
  const Segment& segment = state_.segments[place.entry.segment];
  const bool holds =
      segment.state == SegmentState::kActive || segment.state == SegmentState::kSealed;
  if (holds && segment.generation == place.generation) Overwrite(place.entry, std::nullopt);
  return true;
}

// The record was durable before it was found, so nothing else is written to its place meanwhile.
void ColdRemover::Overwrite(const ColdEntry& entry, std::optional<uint64_t> tag) {
  state_.index.Remove(entry.key, entry.segment, entry.page);
  state_.CountOut(entry);
  Segment& segment = state_.segments[entry.segment];
  segment.catalogue_stale = true;
  // The segment is in use until the batch ends.
  ++segment.writes;
  const auto number = static_cast<uint32_t>(batch_.size());
  batch_.push_back({.tag = tag, .entry = entry});
  const uint64_t offset = entry.page * kRecordAlignment;
  EncodeVoid({.segment = entry.segment, .offset = offset, .generation = segment.generation},
             entry.pages * kRecordAlignment, pages_[number]);
  ++requests_;
  state_.stats.bytes_written += kRecordAlignment;
  state_.Submit(IoOwner::kRemover, number,
                {.kind = IoKind::kWrite,
                 .file = segment.file,
                 .offset = offset,
                 .data = pages_[number].data(),
                 .bytes = kRecordAlignment});
}

void ColdRemover::SyncSegments() {
  syncing_ = true;
  std::set<uint32_t> segments;
  for (const Removal& removal : batch_) segments.insert(removal.entry.segment);
  for (const uint32_t number : segments) {
    ++requests_;
    state_.Submit(IoOwner::kRemover, number,
                  {.kind = IoKind::kSync, .file = state_.segments[number].file});
  }
}

// Writes have the number of their removal, syncs that of their segment.
void ColdRemover::OnIo(uint32_t number, const IoCompletion& completion) {
  --requests_;
  if (!syncing_) {
    batch_[number].failed = completion.error || completion.bytes != kRecordAlignment;
    return;
  }
  if (!completion.error) return;
  for (Removal& removal : batch_) removal.failed |= removal.entry.segment == number;
}

void ColdRemover::EndBatch() {
  for (const Removal& removal : std::exchange(batch_, {})) {
    Segment& segment = state_.segments[removal.entry.segment];
    --segment.writes;
    segment.catalogue_stale = true;
    if (removal.failed) {
      LogWarn("store {}: a removal could not be made durable", state_.options.directory);
    }
    if (removal.tag) {
      state_.End(*removal.tag, removal.failed ? StoreOutcome::kIo : StoreOutcome::kOk);
    }
  }
  syncing_ = false;
}

}  // namespace quire::tier

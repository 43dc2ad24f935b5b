#include "tier/cold_remover.h"

#include <set>
#include <utility>

#include "base/log.h"

namespace quire::tier {

ColdRemover::ColdRemover(ColdState& state, const ColdWriter& writer)
    : state_(state), writer_(writer), pages_(kRecordAlignment, kBatchMax) {}

void ColdRemover::Remove(const Digest& key, uint64_t tag) {
  waiting_.push_back({.key = PrefixOf(key), .tag = tag});
}

void ColdRemover::Tick() {
  if (!batch_.empty() && requests_ == 0) {
    if (!syncing_) SyncSegments();
    if (requests_ == 0) EndBatch();
  }
  if (batch_.empty()) StartBatch();
}

void ColdRemover::StartBatch() {
  std::vector<Waiting> later;
  for (const Waiting& removal : waiting_) {
    if (batch_.size() == kBatchMax || writer_.IsWriting(removal.key)) {
      later.push_back(removal);
      continue;
    }
    const auto entry = state_.index.Find(removal.key);
    if (entry) {
      Overwrite(*entry, removal.tag);
    } else {
      state_.End(removal.tag, StoreOutcome::kAbsent);
    }
  }
  waiting_ = std::move(later);
}

// The record was durable before it was found, so nothing else is written to its place meanwhile.
void ColdRemover::Overwrite(const ColdEntry& entry, uint64_t tag) {
  state_.index.Remove(entry.key, entry.segment, entry.page);
  state_.CountOut(entry);
  Segment& segment = state_.segments[entry.segment];
  segment.catalogue_stale = true;
  // The segment is in use until the batch ends.
  ++segment.writes;
  const auto number = static_cast<uint32_t>(batch_.size());
  batch_.push_back({.tag = tag, .segment = entry.segment});
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
  for (const Removal& removal : batch_) segments.insert(removal.segment);
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
  for (Removal& removal : batch_) removal.failed |= removal.segment == number;
}

void ColdRemover::EndBatch() {
  for (const Removal& removal : std::exchange(batch_, {})) {
    Segment& segment = state_.segments[removal.segment];
    --segment.writes;
    segment.catalogue_stale = true;
    if (removal.failed) {
      LogWarn("store {}: a removal could not be made durable", state_.options.directory);
    }
    state_.End(removal.tag, removal.failed ? StoreOutcome::kIo : StoreOutcome::kOk);
  }
  syncing_ = false;
}

}  // namespace quire::tier

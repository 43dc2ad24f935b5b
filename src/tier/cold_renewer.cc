#include "tier/cold_renewer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/wiped_vector.h"
#include "tier/record_seal.h"

namespace quire::tier {
namespace {

constexpr uint64_t kBusyWaitUs = 10'000;
constexpr uint64_t kFullWaitUs = 10'000'000;
// Each attempt may cost the store a segment.
constexpr uint64_t kFailedWaitUs = 600'000'000;

}  // namespace

void ColdRenewer::Renew(const PublisherId& publisher, uint64_t generation) {
  uint64_t& until = until_[publisher];
  until = std::max(until, generation);
}

void ColdRenewer::Tick(uint64_t now_us) {
  if (failed_ != writer_.rewrites_failed()) {
    failed_ = writer_.rewrites_failed();
    LogWarn("store {}: what old keys sealed cannot be written anew just now: they stay",
            state_.options.directory);
    due_us_ = now_us + kFailedWaitUs;
  }
  if (copied_ != nullptr) {
    if (!copied_->is_done || now_us < due_us_) return;
    if (copied_->bytes.empty() || Write(now_us)) LetGo();
    return;
  }
  if (state_.options.renew_bytes_per_s == 0 || now_us < due_us_ || until_.empty()) return;
  if (entries_.empty() && !FindSegment()) return;
  StartReading(now_us);
}

// Active ones are closed before a key is renewed, so what is found is sealed.
bool ColdRenewer::FindSegment() {
  while (!until_.empty()) {
    const auto& [publisher, until] = *until_.begin();
    for (uint32_t i = 0; i < state_.segments.size(); ++i) {
      const Segment& segment = state_.segments[i];
      if (segment.state != SegmentState::kSealed || segment.publisher != publisher) continue;
      if (segment.generation > until || !state_.Serves(publisher, segment.erase_epoch)) continue;
      entries_ = state_.index.EntriesOf(i);
      if (!entries_.empty()) return true;
    }
    until_.erase(until_.begin());
  }
  return false;
}

void ColdRenewer::StartReading(uint64_t now_us) {
  entry_ = entries_.back();
  entries_.pop_back();
  const auto still = state_.index.Find(entry_.key);
  if (!still || still->segment != entry_.segment || still->page != entry_.page) return;
  if (writer_.IsWriting(entry_.key)) return;  // it is on its way already
  copied_ = reader_.Copy(entry_);
  if (copied_ == nullptr) {
    entries_.push_back(entry_);
    due_us_ = now_us + kBusyWaitUs;
    return;
  }
  ++state_.segments[entry_.segment].reads;  // it may not be written anew meanwhile
  due_us_ = now_us + entry_.pages * kRecordAlignment * 1'000'000 / state_.options.renew_bytes_per_s;
}

bool ColdRenewer::Write(uint64_t now_us) {
  const auto record = SealedRecordOf(copied_->bytes);
  if (!record) {
    state_.Quarantine(entry_);
    return true;
  }
  const RecordIdentity& identity = record->identity;
  // Its owner was erased meanwhile.
  if (!state_.Serves(identity.publisher, identity.erase_epoch)) return true;
  if (!state_.keys->Has(identity.publisher)) return true;
  RecordOpener opener(*state_.keys, identity, record->layout);
  const std::span<std::byte> payload =
      std::span(copied_->bytes).subspan(record->layout.header_bytes());
  std::vector<WipedVector<std::byte>> plain;
  std::vector<std::span<const std::byte>> sections;
  for (uint32_t i = 0; i < record->layout.sections().size(); ++i) {
    const uint64_t bytes = record->layout.sections()[i].bytes;
    const std::span<std::byte> sealed = payload.subspan(record->layout.offset(i), bytes);
    plain.emplace_back(bytes - kSectionSealBytes);
    if (!opener.Open(i, {&sealed, 1}, plain.back())) {
      state_.Quarantine(entry_);
      return true;
    }
    sections.emplace_back(plain.back());
  }
  const StoreOutcome outcome = writer_.Rewrite(
      {.identity = identity, .layout = &record->layout, .sections = sections}, entry_);
  if (outcome == StoreOutcome::kOk || outcome == StoreOutcome::kAbsent) return true;
  due_us_ = now_us + (outcome == StoreOutcome::kBusy ? kBusyWaitUs : kFullWaitUs);
  return outcome != StoreOutcome::kBusy;
}

void ColdRenewer::LetGo() {
  --state_.segments[entry_.segment].reads;
  copied_ = nullptr;
}

}  // namespace quire::tier

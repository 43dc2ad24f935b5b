#include "tier/epoch_saver.h"

#include <utility>

#include "base/canary.h"
#include "base/log.h"

namespace quire::tier {
namespace {

constexpr uint64_t kReplaceRetryUs = 30'000'000;  // of a copy, while there is nothing to save

}  // namespace

bool EpochSaver::idle() const {
  const bool is_saved = state_.epochs.version() == state_.epochs.saved_version();
  return waiting_.empty() && !is_saving_ && (is_saved || state_.epochs_damaged);
}

void EpochSaver::Tick(uint64_t now_us) {
  if (is_saving_ || state_.epochs_damaged) return;
  // Segments that give way to the epochs are still there.
  if (state_.segments.files() > state_.segments.segments_max()) return;
  const bool is_missing = !copies_[0] || !copies_[1];
  const bool is_due = idle() ? is_missing && now_us >= replace_us_ : now_us >= retry_us_;
  if (!waiting_.empty() || is_due) Start();
}

void EpochSaver::Start() {
  saving_ = std::exchange(waiting_, {});
  target_ = state_.epochs.version();
  if (Planted(Canary::kLoseEpoch)) return End(StoreOutcome::kOk);
  is_saving_ = true;
  was_replaced_ = {};
  Go();
}

// The copy that is no good first: the other one is whole, and stays as it is until both are.
void EpochSaver::Go() {
  size_t first = copies_[0] && !copies_[1] ? 1 : 0;
  if (Planted(Canary::kGoodCopyFirst)) first = 1 - first;
  for (const size_t copy : {first, 1 - first}) {
    if (copies_[copy] && copies_[copy]->version >= target_) continue;
    const uint64_t more = copies_[copy] ? target_ - copies_[copy]->version : 0;
    const bool replaces =
        !copies_[copy] || IsLong(copies_[copy]->changes + more, state_.epochs.publishers());
    if (!replaces) return Append(copy);
    if (!Replace(copy)) return End(StoreOutcome::kIo);
  }
  End(StoreOutcome::kOk);
}

// The driver waits for this: it is rare, and the table is short unless there are very many tenants.
bool EpochSaver::Replace(size_t copy) {
  if (std::exchange(was_replaced_[copy], true)) return false;
  const std::vector<std::byte> table = state_.epochs.Encode();
  const auto made = ReplaceEpochFile(state_.files, state_.options.directory, copy, table);
  const auto before = std::exchange(copies_[copy], std::nullopt);
  if (before) state_.files.Close(before->file);
  state_.stats.bytes_written += table.size();
  if (!made) {
    LogWarn("store {}: {}: {}", state_.options.directory, kEpochNames[copy], made.error().message);
    return false;
  }
  copies_[copy] = {.file = *made,
                   .version = state_.epochs.version(),
                   .bytes = table.size(),
                   .checksum = EpochChecksum(table)};
  return true;
}

void EpochSaver::Append(size_t copy) {
  appending_ = copy;
  syncing_ = false;
  after_ = *copies_[copy];
  const auto changes = state_.epochs.ChangesAfter(after_.version).first(target_ - after_.version);
  image_ = EncodeEpochChanges(changes, after_.version, after_.checksum);
  after_.version = target_;
  after_.bytes += image_.size();
  after_.changes += changes.size();
  state_.stats.bytes_written += image_.size();
  state_.Submit(IoOwner::kEraser, kIoNumber,
                {.kind = IoKind::kWrite,
                 .file = after_.file,
                 .offset = copies_[copy]->bytes,
                 .data = image_.data(),
                 .bytes = image_.size()});
}

void EpochSaver::OnIo(const IoCompletion& completion) {
  if (completion.error || (!syncing_ && completion.bytes != image_.size())) {
    // What failed may be torn, and what of it will still be there tomorrow is unknown.
    LogWarn("store {}: {}: {} failed", state_.options.directory, kEpochNames[appending_],
            syncing_ ? "sync" : "write");
    state_.files.Close(copies_[appending_]->file);
    copies_[appending_].reset();
    return Go();
  }
  if (!std::exchange(syncing_, true)) {
    return state_.Submit(IoOwner::kEraser, kIoNumber, {.kind = IoKind::kSync, .file = after_.file});
  }
  copies_[appending_] = after_;
  Go();
}

void EpochSaver::End(StoreOutcome outcome) {
  is_saving_ = false;
  state_.epochs_failed = outcome != StoreOutcome::kOk;
  if (outcome == StoreOutcome::kOk) {
    state_.epochs.Saved(target_);
  } else if (state_.epochs.version() != state_.epochs.saved_version()) {
    ++failures_;
    retry_us_ = state_.clock.NowMicros() + state_.options.commit_interval_us;
    LogWarn("store {}: an erasure could not be made durable", state_.options.directory);
  } else {
    replace_us_ = state_.clock.NowMicros() + kReplaceRetryUs;
  }
  for (const uint64_t tag : std::exchange(saving_, {})) state_.End(tag, outcome);
}

void EpochSaver::CloseFiles() {
  for (const auto& copy : copies_) {
    if (copy) state_.files.Close(copy->file);
  }
}

}  // namespace quire::tier

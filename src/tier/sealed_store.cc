#include "tier/sealed_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace quire::tier {
namespace {

constexpr uint64_t kSaveRetryUs = 1'000'000;
constexpr uint64_t kRetireUs = 10'000'000;
constexpr uint64_t kFinishWaitUs = 1000;
constexpr uint64_t kFinishLookUs = 100'000;
constexpr uint64_t kStuckUs = 60'000'000;

}  // namespace

SealedStore::SealedStore(std::unique_ptr<ColdStore> cold, const Clock& clock)
    : cold_(std::move(cold)), keys_(*cold_->keys()), clock_(clock) {}

Result<std::unique_ptr<SealedStore>> SealedStore::Open(const ColdOptions& options, Files& files,
                                                       const Clock& clock, const StoreKeys& keys) {
  ColdOptions unnamed = options;
  unnamed.limits.clear();
  QUIRE_ASSIGN(auto cold, ColdStore::Open(unnamed, files, clock, keys));
  std::unique_ptr<SealedStore> store(new SealedStore(std::move(cold), clock));
  for (const PublisherLimits& limits : options.limits) store->SetLimits(limits);
  store->FinishErasures();
  store->RetireKeys();
  return store;
}

// A key is durable before anything is sealed with it. So where there is something and no key, a
// process ended in the middle of an erasure: after the key, before the epoch.
void SealedStore::FinishErasures() {
  for (const PublisherId& name : cold_->publishers()) {
    if (keys_.Has(name)) continue;
    LogInfo("store: an erasure that a crash cut off is finished");
    // Nothing else is under way yet, so what ends is this.
    std::vector<StoreCompletion> ended;
    cold_->Erase(name, cold_->EpochOf(name) + 1, /*tag=*/0);
    while (ended.empty()) cold_->Tick(ended, kFinishWaitUs);
  }
}

void SealedStore::Put(std::span<const PutRequest> requests) {
  for (const PutRequest& request : requests) {
    const PublisherId name = keys_.NameOf(request.identity.publisher);
    const auto refuse = [&](StoreOutcome outcome) {
      refused_.push_back({.tag = request.tag, .outcome = outcome});
    };
    // The first record of an owner: its key becomes durable now. That is waited for, as it happens
    // once. What the store refuses for its epoch needs none.
    if (cold_->EpochOf(name) == request.identity.erase_epoch) {
      const auto key = keys_.KeyFor(name);
      if (!key && !std::exchange(warned_, true)) LogWarn("{}", key.error().message);
      if (!key) {
        refuse(key.error().code == ErrorCode::kNoSpace ? StoreOutcome::kNoSpace
                                                       : StoreOutcome::kIo);
        continue;
      }
    }
    const auto sealed = Disguise(keys_, request.identity, *request.layout);
    if (!sealed) {
      refuse(StoreOutcome::kTooLarge);
      continue;
    }
    const PutRequest below = {.identity = sealed->identity,
                              .layout = &sealed->layout,
                              .sections = request.sections,
                              .tag = request.tag};
    cold_->Put({&below, 1});
  }
}

void SealedStore::Find(std::span<const Digest> keys, std::span<Presence> out) const {
  std::vector<Digest> names(keys.size());
  keys_.NamesOf(keys, names);
  cold_->Find(names, out);
}

void SealedStore::Touch(std::span<const RecordUse> uses, std::span<Presence> out) {
  std::vector<RecordUse> names(uses.begin(), uses.end());
  for (RecordUse& use : names) use.key = keys_.NameOf(use.key);
  cold_->Touch(names, out);
}

std::vector<RecordRoot> SealedStore::RootsOf(const PublisherId& publisher) const {
  auto roots = cold_->RootsOf(keys_.NameOf(publisher));
  for (RecordRoot& root : roots) root.key = keys_.KeyOf(root.key);
  return roots;
}

void SealedStore::SetLimits(const PublisherLimits& limits) {
  PublisherLimits named = limits;
  named.publisher = keys_.NameOf(limits.publisher);
  cold_->SetLimits(named);
}

uint64_t SealedStore::FitRecords(uint64_t record_bytes) {
  return UnsealedBytesMin(cold_->FitRecords(SealedBytesMax(record_bytes)));
}

void SealedStore::Get(std::span<const LoadRequest> loads, uint64_t deadline_us) {
  for (const LoadRequest& load : loads) {
    auto sealed = Disguise(keys_, load.identity, *load.layout);
    if (!sealed) {
      refused_.push_back({.tag = load.tag, .outcome = StoreOutcome::kTooLarge});
      continue;
    }
    auto& kept = loads_[load.tag];
    kept = std::make_unique<SealedRecord>(*std::move(sealed));
    LoadRequest below = load;
    below.identity = kept->identity;
    below.layout = &kept->layout;
    cold_->Get({&below, 1}, deadline_us);
  }
}

// The key goes first, for good: then whatever is left of what it sealed, here or in a copy of the
// disk that is made from now on, cannot be opened.
void SealedStore::Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) {
  const PublisherId name = keys_.NameOf(publisher);
  if (epoch > cold_->EpochOf(name) && !Destroy(name)) failed_.insert(tag);
  cold_->Erase(name, epoch, tag);
}

Result<void> SealedStore::Destroy(const PublisherId& name) {
  auto destroyed = keys_.Destroy(name);
  if (!destroyed) {
    LogWarn("{}; the erasure is tried again", destroyed.error().message);
    save_us_ = clock_.NowMicros() + kSaveRetryUs;
  }
  return destroyed;
}

uint64_t SealedStore::EpochOf(const PublisherId& publisher) const {
  return cold_->EpochOf(keys_.NameOf(publisher));
}

void SealedStore::Remove(const Digest& key, uint64_t tag) { cold_->Remove(keys_.NameOf(key), tag); }

std::optional<uint64_t> SealedStore::RecordBytesOf(const Digest& key) const {
  const auto bytes = cold_->RecordBytesOf(keys_.NameOf(key));
  if (!bytes) return std::nullopt;
  return *bytes - std::min(*bytes, kRecordAlignment);
}

void SealedStore::Flush(uint64_t tag) {
  flushes_.insert(tag);
  cold_->Flush(tag);
}

void SealedStore::Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) {
  const uint64_t now_us = clock_.NowMicros();
  if (!keys_.is_saved() && now_us >= save_us_) {
    if (const auto saved = keys_.Save(); !saved) {
      LogWarn("{}", saved.error().message);
      save_us_ = now_us + kSaveRetryUs;
    }
  }
  if (now_us >= retire_us_) RetireKeys();
  done.insert(done.end(), refused_.begin(), refused_.end());
  const uint64_t may_wait_us = std::exchange(refused_, {}).empty() ? wait_us : 0;
  const size_t first = done.size();
  cold_->Tick(done, may_wait_us);
  for (size_t i = first; i < done.size(); ++i) {
    StoreCompletion& end = done[i];
    loads_.erase(end.tag);
    const bool unsaved =
        failed_.erase(end.tag) > 0 || (flushes_.erase(end.tag) > 0 && !keys_.is_saved());
    if (unsaved && end.outcome == StoreOutcome::kOk) end.outcome = StoreOutcome::kIo;
  }
}

PublisherUsage SealedStore::UsageOf(const PublisherId& publisher) const {
  return cold_->UsageOf(keys_.NameOf(publisher));
}

Result<void> SealedStore::RenewKeys() {
  for (const PublisherId& name : keys_.owners()) {
    QUIRE_TRY(keys_.Renew(name, cold_->CloseSegment(name)));
  }
  RetireKeys();
  return {};
}

bool SealedStore::HasOldKeys() const {
  return std::ranges::any_of(keys_.owners(),
                             [&](const PublisherId& name) { return keys_.HasOld(name); });
}

Result<void> SealedStore::FinishRenewal(const std::function<void(uint64_t, uint64_t)>& progress) {
  const uint64_t total = Stats().records;
  uint64_t done = 0;
  uint64_t moved_us = clock_.NowMicros();
  std::vector<StoreCompletion> ended;
  for (RetireKeys(); HasOldKeys();) {
    Tick(ended, kFinishWaitUs);
    retire_us_ = std::min(retire_us_, clock_.NowMicros() + kFinishLookUs);
    if (done != Stats().renewed) moved_us = clock_.NowMicros();
    done = Stats().renewed;
    progress(std::min(done, total), total);
    if (clock_.NowMicros() < moved_us + kStuckUs) continue;
    return Fail(ErrorCode::kIo,
                fmt::format("store: {} records were sealed with a new key, and then it went on no "
                            "more; the old keys stay until their segments are written anew",
                            done));
  }
  return {};
}

// What an old key sealed is written anew in the background, and when nothing is left of it, the key
// goes.
void SealedStore::RetireKeys() {
  retire_us_ = clock_.NowMicros() + kRetireUs;
  for (const PublisherId& name : keys_.owners()) {
    if (!keys_.HasOld(name)) continue;
    cold_->Renew(name, keys_.OldUntil(name));
    const auto retired = keys_.Retire(name, cold_->OldestGenerationOf(name));
    if (!retired) LogWarn("{}", retired.error().message);
  }
}

}  // namespace quire::tier

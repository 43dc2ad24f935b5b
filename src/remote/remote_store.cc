#include "remote/remote_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quire::remote {

using tier::LoadRequest;
using tier::Presence;
using tier::PublisherId;
using tier::PutRequest;
using tier::StoreCompletion;
using tier::StoreOutcome;
using tier::StoreStats;

namespace {

constexpr size_t kReusedMax = 64 << 10;
constexpr uint64_t kOwnTags = uint64_t{1} << 63;  // of what the caller has not asked for

// Keys are digests: any of their bytes are as good as others.
uint64_t NumberOf(const Digest& key) {
  uint64_t number = 0;
  std::memcpy(&number, key.data(), sizeof(number));
  return number;
}

bool IsAllOf(const LoadRequest& load) {
  return load.section_first == 0 && load.section_count == load.layout->sections().size();
}

}  // namespace

RemoteStore::RemoteStore(std::unique_ptr<RemoteRecords> remote, std::unique_ptr<tier::Store> local,
                         RemoteWrites writes)
    : remote_(std::move(remote)),
      local_(std::move(local)),
      writes_(local_ == nullptr ? RemoteWrites::kAll : writes) {}

// Writes.

void RemoteStore::Put(std::span<const PutRequest> requests) {
  for (const PutRequest& request : requests) {
    const PublisherId& publisher = request.identity.publisher;
    if (request.identity.erase_epoch > remote_->EpochOf(publisher)) {
      remote_->Tell(publisher, EpochOf(publisher));
    }
    if (local_ == nullptr) {
      remote_->Put(request);
      continue;
    }
    local_->Put({&request, 1});
    if (WantsWritten(request.identity.key)) PutInRemote(request);
  }
}

bool RemoteStore::WantsWritten(const Digest& key) {
  return writes_ == RemoteWrites::kAll || reused_.erase(NumberOf(key)) > 0;
}

void RemoteStore::PutInRemote(const PutRequest& request) {
  PutRequest own = request;
  own.tag = kOwnTags;
  remote_->Put(own);
}

// What came from the remote is wanted again sooner than what this machine has not used.
void RemoteStore::PutInLocal(const LoadRequest& load) {
  const std::vector<std::span<const std::byte>> sections(load.out.begin(), load.out.end());
  const PutRequest request{.identity = load.identity,
                           .layout = load.layout,
                           .sections = sections,
                           .crcs = load.crcs,
                           .tag = kOwnTags};
  local_->Put({&request, 1});
}

// What is in use and the remote lacks is to be offered again: its bytes are above.
void RemoteStore::Touch(std::span<const tier::RecordUse> uses, std::span<Presence> out) {
  if (local_ != nullptr) {
    local_->Touch(uses, out);
  } else {
    std::ranges::fill(out, Presence::kUnknown);
  }
  const bool may_ask = remote_->use().may_ask;
  for (size_t i = 0; i < uses.size(); ++i) {
    const Presence there = remote_->Find(uses[i].key);
    if (local_ == nullptr) out[i] = there;
    if (writes_ == RemoteWrites::kAll || there == Presence::kPresent) continue;
    if (!may_ask) continue;
    const uint64_t number = NumberOf(uses[i].key);
    if (!reused_.insert(number).second) continue;
    reused_order_.push_back(number);
    if (reused_order_.size() > kReusedMax) {
      reused_.erase(reused_order_.front());
      reused_order_.pop_front();
    }
    out[i] = Presence::kAbsent;
  }
}

// Lookups.

void RemoteStore::Find(std::span<const Digest> keys, std::span<Presence> out) const {
  if (local_ != nullptr) {
    local_->Find(keys, out);
  } else {
    std::ranges::fill(out, Presence::kAbsent);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (out[i] != Presence::kPresent) out[i] = remote_->Find(keys[i]);
  }
}

std::optional<uint64_t> RemoteStore::RecordBytesOf(const Digest& key) const {
  return local_ == nullptr ? std::nullopt : local_->RecordBytesOf(key);
}

std::vector<tier::RecordRoot> RemoteStore::RootsOf(const PublisherId& publisher) const {
  if (local_ == nullptr) return {};
  return local_->RootsOf(publisher);
}

void RemoteStore::SetLimits(const tier::PublisherLimits& limits) {
  if (local_ != nullptr) local_->SetLimits(limits);
}

uint64_t RemoteStore::FitRecords(uint64_t record_bytes) {
  return local_ == nullptr ? ~uint64_t{0} : local_->FitRecords(record_bytes);
}

uint64_t RemoteStore::EpochOf(const PublisherId& publisher) const {
  const uint64_t epoch = remote_->EpochOf(publisher);
  return local_ == nullptr ? epoch : std::max(epoch, local_->EpochOf(publisher));
}

tier::PublisherUsage RemoteStore::UsageOf(const PublisherId& publisher) const {
  return local_ == nullptr ? tier::PublisherUsage{} : local_->UsageOf(publisher);
}

StoreStats RemoteStore::Stats() const {
  StoreStats stats;
  if (local_ != nullptr) {
    stats = local_->Stats();
  } else {
    stats.bytes_cap = ~uint64_t{0};  // a remote does not say
  }
  const RemoteUse remote = remote_->use();
  stats.loads_pending += remote.reading;
  stats.in_flight += remote.reading + remote.writing;
  if (local_ == nullptr) stats.writes_pending += remote.writing;
  return stats;
}

// Loads.

void RemoteStore::Get(std::span<const LoadRequest> loads, uint64_t deadline_us) {
  for (const LoadRequest& load : loads) {
    const PublisherId& publisher = load.identity.publisher;
    if (load.identity.erase_epoch > remote_->EpochOf(publisher)) {
      remote_->Tell(publisher, EpochOf(publisher));
    }
    Presence here = Presence::kAbsent;
    if (local_ != nullptr) local_->Find({&load.identity.key, 1}, {&here, 1});
    const Load entry{.request = load, .deadline_us = deadline_us};
    if (here == Presence::kPresent) {
      local_loads_[load.tag] = entry;
      local_->Get({&load, 1}, deadline_us);
    } else {
      if (local_ != nullptr) remote_loads_[load.tag] = entry;
      remote_->Get(load, deadline_us);
    }
  }
}

void RemoteStore::Cancel(uint64_t tag) {
  local_loads_.erase(tag);
  remote_loads_.erase(tag);
  if (local_ != nullptr) local_->Cancel(tag);
  remote_->Cancel(tag);
}

// What is used a second time is here, so others may want it.
void RemoteStore::OnLocal(const StoreCompletion& end, std::vector<StoreCompletion>& done) {
  if (end.tag == kOwnTags) return;
  if (both_.contains(end.tag)) return EndBoth(end, done);
  const auto load = local_loads_.extract(end.tag);
  if (!load) return done.push_back(end);
  const LoadRequest& request = load.mapped().request;
  const bool failed = end.outcome == StoreOutcome::kAbsent || end.outcome == StoreOutcome::kMiss ||
                      end.outcome == StoreOutcome::kIo;
  if (failed) {
    remote_loads_[end.tag] = load.mapped();
    return remote_->Get(request, load.mapped().deadline_us);
  }
  const bool lent = request.loan != nullptr && request.loan->number != 0;
  if (end.outcome == StoreOutcome::kOk && IsAllOf(request) && !lent &&
      remote_->Find(request.identity.key) != Presence::kPresent) {
    const std::vector<std::span<const std::byte>> sections(request.out.begin(), request.out.end());
    PutInRemote({.identity = request.identity, .layout = request.layout, .sections = sections});
  }
  done.push_back(end);
}

void RemoteStore::OnRemote(const StoreCompletion& end, std::vector<StoreCompletion>& done) {
  if (end.tag == kOwnTags) {
    if (end.outcome == StoreOutcome::kBusy) remote_->CountSkipped();
    return;
  }
  if (both_.contains(end.tag)) return EndBoth(end, done);
  const auto load = remote_loads_.extract(end.tag);
  if (load && end.outcome == StoreOutcome::kOk && IsAllOf(load.mapped().request)) {
    PutInLocal(load.mapped().request);
  }
  done.push_back(end);
}

// Erasing, removing, flushing.

void RemoteStore::Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) {
  if (local_ != nullptr) {
    both_[tag] = {};
    local_->Erase(publisher, epoch, tag);
  }
  remote_->Erase(publisher, epoch, tag);
}

void RemoteStore::Remove(const Digest& key, uint64_t tag) {
  if (local_ != nullptr) {
    both_[tag] = {.removes = true};
    local_->Remove(key, tag);
  }
  remote_->Remove(key, tag);
}

void RemoteStore::EndBoth(StoreCompletion end, std::vector<StoreCompletion>& done) {
  const auto at = both_.find(end.tag);
  Both& both = at->second;
  const bool is_ok = end.outcome == StoreOutcome::kOk;
  both.any_ok = both.any_ok || is_ok;
  if (!is_ok && both.outcome != StoreOutcome::kIo) both.outcome = end.outcome;
  if (--both.left > 0) return;
  end.outcome = both.outcome;
  // It was at one of them.
  if (both.removes && both.any_ok && end.outcome == StoreOutcome::kAbsent) {
    end.outcome = StoreOutcome::kOk;
  }
  both_.erase(at);
  done.push_back(end);
}

void RemoteStore::Flush(uint64_t tag) {
  if (local_ != nullptr) {
    both_[tag] = {};
    local_->Flush(tag);
  }
  flushes_.emplace_back(tag, remote_->write_mark());
}

// Epochs that others raised hold here, too, and what this machine has of it goes.
void RemoteStore::Learn() {
  for (const auto& [publisher, epoch] : remote_->TakeLearned()) {
    if (local_ == nullptr || local_->EpochOf(publisher) >= epoch) continue;
    local_->Erase(publisher, epoch, kOwnTags);
  }
}

void RemoteStore::Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) {
  const size_t before = done.size();
  uint64_t local_wait_us = 0;
  if (local_ != nullptr) {
    // One of them is waited for; the other one's turn is soon.
    const bool waits_here = remote_->use().reading == 0 || !local_loads_.empty();
    if (waits_here) local_wait_us = std::exchange(wait_us, 0);
    std::vector<StoreCompletion> ended;
    local_->Tick(ended, local_wait_us);
    for (const StoreCompletion& end : ended) OnLocal(end, done);
  }
  std::vector<StoreCompletion> ended;
  remote_->Tick(ended, done.size() == before ? wait_us : 0);
  for (const StoreCompletion& end : ended) OnRemote(end, done);
  Learn();
  while (!flushes_.empty() && !remote_->HasWritesBefore(flushes_.front().second)) {
    const StoreCompletion end{.tag = flushes_.front().first};
    flushes_.pop_front();
    if (local_ != nullptr) {
      EndBoth(end, done);
    } else {
      done.push_back(end);
    }
  }
}

}  // namespace quire::remote

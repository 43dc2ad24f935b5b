// A store on a local disk, and what becomes of what is written to it.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "cache/below/store_state.h"
#include "env/clock.h"
#include "remote/open.h"
#include "tier/cold.h"
#include "tier/sealed_store.h"
#include "tier/secret.h"
#include "tier/warm.h"

namespace quire {

Result<std::unique_ptr<DiskStore>> DiskStore::Open(const DiskStoreOptions& options) {
  // Together no later than the interval: what is written is spread over most of it.
  const uint64_t commit_us = options.commit_interval_us / 4;
  std::unique_ptr<Files> files;
  if (!options.directory.empty()) {
    QUIRE_ASSIGN(files, MakeFiles());
  }
  auto state = std::make_unique<cache::StoreState>(std::move(files));
  std::unique_ptr<tier::Store> store;
  if (!options.directory.empty()) {
    const tier::ColdOptions cold = {.directory = options.directory,
                                    .bytes_cap = options.bytes_cap,
                                    .commit_interval_us = commit_us,
                                    .staging_bytes = options.staging_bytes,
                                    .reads_max = 64,
                                    .scrub_bytes_per_s = options.scrub_bytes_per_s};
    if (options.keys.empty()) {
      QUIRE_ASSIGN(store, tier::ColdStore::Open(cold, *state->files, SystemClock()));
    } else {
      QUIRE_ASSIGN(auto sealed,
                   tier::SealedStore::Open(cold, *state->files, SystemClock(), options.keys));
      state->sealed_secret = sealed->keys().domain_secret();
      store = std::move(sealed);
    }
  } else if (!options.keys.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "a store without a directory has nothing to encrypt: give one, or no keys");
  } else if (options.warm_bytes == 0 && options.remote.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "a store has neither a directory nor memory nor a remote");
  } else {
    FillRandom(state->secret);
  }
  state->directory = options.directory;
  if (!options.remote.empty()) {
    QUIRE_ASSIGN(const Digest own, state->Secret());
    QUIRE_ASSIGN(auto remote, remote::OpenRemote({.address = options.remote,
                                                  .fleet_key_file = options.fleet_key_file,
                                                  .own_secret = own,
                                                  .outlives_process = !options.directory.empty()},
                                                 SystemClock()));
    if (remote.is_fleet) state->fleet_secret = remote.domain_secret;
    auto stacked = std::make_unique<remote::RemoteStore>(std::move(remote.records),
                                                         std::move(store), options.remote_writes);
    state->remote = stacked.get();
    store = std::move(stacked);
  }
  if (options.warm_bytes > 0) {
    try {
      auto warm = std::make_unique<tier::WarmStore>(
          tier::WarmOptions{.bytes_cap = options.warm_bytes, .allocator = options.host_allocator},
          SystemClock(), std::move(store));
      state->warm = warm.get();
      store = std::move(warm);
    } catch (const std::bad_alloc&) {
      return Fail(ErrorCode::kNoSpace,
                  fmt::format("store: no memory for warm_bytes {}", options.warm_bytes));
    }
  }
  state->transfers = std::make_unique<transfer::Transfers>(
      std::move(store), SystemClock(),
      transfer::TransferOptions{.spread_us = options.commit_interval_us - commit_us});
  state->transfers->Start();
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(state)));
}

DiskStore::DiskStore(std::unique_ptr<cache::StoreState> state) : state_(std::move(state)) {}
DiskStore::~DiskStore() = default;

Result<Digest> DiskStore::Secret() const { return state_->Secret(); }

Result<void> DiskStore::Flush() { return state_->Flush(); }
DiskStoreStats DiskStore::stats() const { return state_->stats(); }

namespace cache {

using tier::StoreOutcome;

std::unique_ptr<DiskStore> StoreState::Wrap(std::unique_ptr<transfer::Transfers> transfers) {
  auto state = std::make_unique<StoreState>();
  state->transfers = std::move(transfers);
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(state)));
}

Result<Digest> StoreState::Secret() const {
  if (fleet_secret) return *fleet_secret;
  if (sealed_secret) return *sealed_secret;
  if (directory.empty()) return secret;
  return tier::KeepSecret(directory);
}

Result<void> StoreState::Erase(const tier::PublisherId& publisher) {
  const StoreOutcome outcome = transfers->Erase(publisher);
  if (outcome == StoreOutcome::kOk) return {};
  return Fail(ErrorCode::kIo,
              fmt::format("store: the erasure is not durable ({}); nothing of it is found before a "
                          "restart; erase again",
                          StoreOutcomeName(outcome)));
}

Result<void> StoreState::Flush() {
  const uint64_t dropped_before = dropped_;
  const StoreOutcome outcome = transfers->FlushAll();
  const uint64_t dropped = dropped_ - dropped_before;
  if (dropped == 0) {
    if (outcome == StoreOutcome::kOk) return {};
    return Fail(ErrorCode::kIo,
                fmt::format("store: everything is written, but not all that was erased is "
                            "overwritten ({}); the log says why",
                            StoreOutcomeName(outcome)));
  }
  {
    MutexLock lock(mutex_);
    if (!device_error_.empty()) {
      return Fail(ErrorCode::kIo,
                  fmt::format("store: {} blocks could not be read to be written: {}", dropped,
                              device_error_));
    }
  }
  return Fail(
      outcome == StoreOutcome::kOk ? ErrorCode::kNoSpace : ErrorCode::kIo,
      fmt::format("store: {} blocks could not be written ({}); a later process will compute them",
                  dropped, StoreOutcomeName(last_drop_)));
}

void StoreState::CountWritten() {
  ++written_;
  warned_ = false;
}

void StoreState::CountDropped(uint64_t count, StoreOutcome why, std::string device_error) {
  dropped_ += count;
  last_drop_ = why;
  if (!warned_.exchange(true)) {
    LogWarn("store: blocks are not written ({}); what is in memory goes on serving",
            device_error.empty() ? StoreOutcomeName(why) : device_error);
  }
  if (device_error.empty()) return;
  MutexLock lock(mutex_);
  device_error_ = std::move(device_error);
}

DiskStoreStats StoreState::stats() const {
  const tier::StoreStats store = transfers->stats();
  DiskStoreStats stats = {.records = store.records,
                          .bytes = store.bytes,
                          .bytes_cap = store.bytes_cap,
                          .memory_bytes = store.memory_bytes,
                          .records_written = written_,
                          .bytes_put = store.bytes_put,
                          .bytes_written = store.bytes_written,
                          .bytes_read = store.bytes_read,
                          .read_requests = store.read_requests,
                          .records_loaded = loaded,
                          .loads_failed = loads_failed,
                          .records_dropped = dropped_,
                          .records_recycled = store.evicted,
                          .records_damaged = store.damaged,
                          .in_flight = store.in_flight,
                          .writes_pending = store.writes_pending,
                          .disk_full = store.disk_full,
                          .load_us_log2 = store.load_us_log2};
  if (remote != nullptr) stats.remote = remote->remote_stats();
  if (warm == nullptr) return stats;
  const tier::WarmStats of_warm = warm->warm_stats();
  stats.warm_records = of_warm.records;
  stats.warm_bytes = of_warm.bytes;
  stats.warm_loads = of_warm.loads;
  stats.warm_pinned_bytes = of_warm.pinned_bytes;
  return stats;
}

}  // namespace cache
}  // namespace quire

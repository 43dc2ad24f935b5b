// A store on a local disk and the thread that moves blocks to and from it.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/hash.h"
#include "cache/mover.h"
#include "env/clock.h"
#include "env/files.h"
#include "quire/disk_store.h"
#include "tier/cold.h"
#include "tier/secret.h"
#include "tier/warm.h"

namespace quire {

Result<std::unique_ptr<DiskStore>> DiskStore::Open(const DiskStoreOptions& options) {
  // Together no later than the interval: what is written is spread over most of it.
  const uint64_t commit_us = options.commit_interval_us / 4;
  auto state = std::make_unique<cache::StoreState>();
  std::unique_ptr<tier::Store> store;
  if (!options.directory.empty()) {
    QUIRE_ASSIGN(state->files, MakeFiles());
    QUIRE_ASSIGN(store, tier::ColdStore::Open({.directory = options.directory,
                                               .bytes_cap = options.bytes_cap,
                                               .commit_interval_us = commit_us,
                                               .staging_bytes = options.staging_bytes,
                                               .reads_max = 64,
                                               .scrub_bytes_per_s = options.scrub_bytes_per_s},
                                              *state->files, SystemClock()));
  } else if (options.warm_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument, "a store has neither a directory nor memory");
  } else {
    FillRandom(state->secret);
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
  state->directory = options.directory;
  state->mover = std::make_unique<cache::Mover>(std::move(store), SystemClock(),
                                                options.commit_interval_us - commit_us);
  state->mover->Start();
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(state)));
}

DiskStore::DiskStore(std::unique_ptr<cache::StoreState> state) : state_(std::move(state)) {}
DiskStore::~DiskStore() = default;

Result<Digest> DiskStore::Secret() const {
  if (state_->directory.empty()) return state_->secret;
  return tier::KeepSecret(state_->directory);
}

Result<void> DiskStore::Flush() { return state_->mover->Flush(); }
DiskStoreStats DiskStore::stats() const {
  DiskStoreStats stats = state_->mover->stats();
  if (state_->warm != nullptr) {
    const tier::WarmStats warm = state_->warm->warm_stats();
    stats.warm_records = warm.records;
    stats.warm_bytes = warm.bytes;
    stats.warm_loads = warm.loads;
    stats.warm_pinned_bytes = warm.pinned_bytes;
  }
  return stats;
}

namespace cache {

std::unique_ptr<DiskStore> StoreState::Wrap(std::unique_ptr<Mover> mover) {
  auto state = std::make_unique<StoreState>();
  state->mover = std::move(mover);
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(state)));
}

}  // namespace cache
}  // namespace quire

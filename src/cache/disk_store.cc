// A store on a local disk and the thread that moves blocks to and from it.
#include <utility>

#include "cache/mover.h"
#include "env/clock.h"
#include "env/files.h"
#include "quire/store.h"
#include "tier/cold.h"

namespace quire {

Result<std::unique_ptr<DiskStore>> DiskStore::Open(const DiskStoreOptions& options) {
  auto state = std::make_unique<cache::StoreState>();
  QUIRE_ASSIGN(state->files, MakeFiles());
  auto store = tier::ColdStore::Open({.directory = options.directory,
                                      .bytes_cap = options.bytes_cap,
                                      .commit_interval_us = options.commit_interval_us,
                                      .staging_bytes = options.staging_bytes,
                                      .scrub_bytes_per_s = options.scrub_bytes_per_s},
                                     *state->files, SystemClock());
  if (!store) return std::unexpected(std::move(store).error());
  state->mover = std::make_unique<cache::Mover>(*std::move(store), SystemClock());
  state->mover->Start();
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(state)));
}

DiskStore::DiskStore(std::unique_ptr<cache::StoreState> state) : state_(std::move(state)) {}
DiskStore::~DiskStore() = default;

Result<void> DiskStore::Flush() { return state_->mover->Flush(); }
DiskStoreStats DiskStore::stats() const { return state_->mover->stats(); }

namespace cache {

std::unique_ptr<DiskStore> StoreState::Wrap(std::unique_ptr<Mover> mover) {
  auto state = std::make_unique<StoreState>();
  state->mover = std::move(mover);
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(state)));
}

}  // namespace cache
}  // namespace quire

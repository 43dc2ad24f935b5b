// What a DiskStore is: the transfers of its store, and what its caches did with them.
#ifndef QUIRE_CACHE_BELOW_STORE_STATE_H_
#define QUIRE_CACHE_BELOW_STORE_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "env/files.h"
#include "quire/disk_store.h"
#include "remote/remote_store.h"
#include "tier/warm.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// Threads: any, once it is made
struct StoreState {
  explicit StoreState(std::unique_ptr<Files> disk = nullptr) : files(std::move(disk)) {}

  /// For tests, which turn it themselves.
  static std::unique_ptr<DiskStore> Wrap(std::unique_ptr<transfer::Transfers> transfers);

  /// As DiskStore.
  Result<Digest> Secret() const;
  Result<void> Flush();
  DiskStoreStats stats() const;
  /// Forgets everything of a publisher, for good. Returns when that is durable.
  /// Errors: kIo it is not durable, though nothing of it is found before a restart
  Result<void> Erase(const tier::PublisherId& publisher);

  /// A block was written; others may be again.
  void CountWritten();
  /// So many were not. `device_error`: of a device that failed before their bytes were here.
  void CountDropped(uint64_t count, tier::StoreOutcome why, std::string device_error = {});

  std::string directory;
  Digest secret{};                        // without a directory
  std::optional<Digest> sealed_secret{};  // of the keys of an encrypted directory
  std::optional<Digest> fleet_secret{};   // of a fleet's key: before any other
  const std::unique_ptr<Files> files;
  const tier::WarmStore* warm = nullptr;        // of the transfers; null: none
  const remote::RemoteStore* remote = nullptr;  // the same
  std::unique_ptr<transfer::Transfers> transfers;

  std::atomic<uint64_t> loaded = 0;  // records
  std::atomic<uint64_t> loads_failed = 0;

 private:
  std::atomic<uint64_t> written_ = 0;
  std::atomic<uint64_t> dropped_ = 0;
  std::atomic<tier::StoreOutcome> last_drop_ = tier::StoreOutcome::kOk;  // why
  std::atomic<bool> warned_ = false;
  Mutex mutex_{LockRank::kLeaf};
  std::string device_error_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_STORE_STATE_H_

// Owners and their caches within one memory budget.
#ifndef QUIRE_REGISTRY_REGISTRY_H_
#define QUIRE_REGISTRY_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "quire/cache.h"
#include "registry/owner_cache.h"

namespace quire::registry {

/// What EvictToBudget did.
struct EvictReport {
  uint64_t owners_evicted = 0;
  uint64_t bytes_used =
      0;  // afterwards; above the target: the rest is pinned, training's or an engine's
};

/// Owners by name. Each combination of codecs and checkpoint layers has a cache of its own, made
/// when the first owner asks for it, and all of them pay from one budget.
///
/// Threads:  any. One lock (rank 2) for the map; it is not held while a cache works
/// Lifetime: must outlive the owner caches and the sequences of requests()
class Registry {
 public:
  /// `options` are those of each cache: hot_bytes is the hard budget over all owners, whatever they
  /// choose, hot_bytes_max the most that Resize may raise it to, profile that of owners that name
  /// none. A clock is needed; what `options` points to must outlive the registry.
  ///
  /// Errors: as Cache::Create; kInvalidArgument no clock, or a shared budget: it has its own
  static Result<std::unique_ptr<Registry>> Create(CacheOptions options);
  ~Registry();

  /// The owner's cache, made if there is none. An inference owner starts with what is cached of
  /// `prompt` (may be empty); a training run starts empty and never publishes.
  ///
  /// Errors: kInvalidArgument it exists with other options, or these name layers that do not exist,
  ///         or it has the id of a request; kNoSpace all that may be evicted is; as Cache::Create
  ///         for codecs
  Result<std::shared_ptr<OwnerCache>> GetOrCreate(const Owner& owner, const OwnerOptions& options,
                                                  std::span<const TokenId> prompt = {});
  /// The cache of owners that choose nothing, for an engine: each sequence that it opens, forks or
  /// selects is an inference owner from then to its end. The engine makes room among its own, so
  /// none of them is evicted, and none evicts other owners.
  Cache& requests() { return *requests_; }
  /// Null: there is none.
  std::shared_ptr<OwnerCache> Find(const Owner& owner) const;
  /// The cache of owners with these options, made if there is none: for an engine that serves
  /// requests on the same budget.
  ///
  /// Errors:   as GetOrCreate, for the options
  /// Lifetime: the registry's
  Result<Cache*> CacheOf(const OwnerOptions& options);
  /// The owner's end, of a training run too. What it published stays cached. False: there is none.
  bool Release(const Owner& owner);

  /// Brings the bytes in use down to `bytes`: first what is cached and not in use, then the least
  /// recently used inference owners. Never a training run.
  EvictReport EvictToBudget(uint64_t bytes);

  /// Moves the budget. Down: makes room as EvictToBudget does until no more than that is charged,
  /// so training runs and requests stay. No slot of a live owner moves; caches give the memory
  /// beyond the new budget back where none of it is in use.
  ///
  /// Errors:  kTooLarge above hot_bytes_max; kNoSpace it holds no block of some owner's, or the
  ///          system refuses memory; kBusy training runs and requests hold more. The budget is then
  ///          as before; what was evicted to get there is not brought back
  /// Threads: any; calls take turns
  Result<void> Resize(uint64_t bytes);

  /// What requests() does with each sequence: makes an inference owner of it, which is never
  /// evicted; and its end.
  std::shared_ptr<OwnerCache> Adopt(std::unique_ptr<Sequence> sequence);
  void Dismiss(const std::shared_ptr<OwnerCache>& owner);

  uint64_t bytes_used() const { return budget_.used_bytes(); }
  uint64_t budget_bytes() const { return budget_.bytes(); }
  uint64_t owner_count() const;

 private:
  // One combination of codecs and checkpoint layers.
  struct Store {
    NumericProfile profile;
    std::vector<uint32_t> checkpoint_layers;
    std::vector<uint32_t> layer_numbers;  // [layers of the model]
    std::unique_ptr<Cache> cache;
  };

  explicit Registry(CacheOptions options);

  Result<Store*> StoreFor(const OwnerOptions& options) QUIRE_REQUIRES(mutex_);
  Result<std::shared_ptr<OwnerCache>> Make(const Owner& owner, const OwnerOptions& options,
                                           Store& store, std::span<const TokenId> prompt);
  std::vector<Cache*> Caches() const;
  bool EvictUnused();
  uint64_t LastingBytes() const;
  Result<void> Grow(uint64_t bytes);
  Result<void> Shrink(uint64_t bytes);
  bool EvictLeastRecent(const OwnerCache* except);

  const CacheOptions options_;
  SharedBudget budget_;
  Mutex resize_mutex_{LockRank::kRegistryResize};
  // Before owners_: they end first.
  std::vector<std::unique_ptr<Store>> stores_ QUIRE_GUARDED_BY(mutex_);
  std::unique_ptr<Cache> requests_;  // set once, by Create
  mutable Mutex mutex_{LockRank::kRegistry};
  uint64_t next_request_ QUIRE_GUARDED_BY(mutex_) = Inference::kFirstRequest;
  std::map<Owner, std::shared_ptr<OwnerCache>> owners_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_REGISTRY_H_

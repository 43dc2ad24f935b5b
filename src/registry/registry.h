// Owners and their caches within one memory budget.
#ifndef QUIRE_REGISTRY_REGISTRY_H_
#define QUIRE_REGISTRY_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "cache/core.h"
#include "quire/cache.h"
#include "quota/ledger.h"
#include "registry/owner.h"
#include "registry/owner_cache.h"

namespace quire::registry {

struct RegistryOptions {
  Geometry geometry{};
  NumericProfile profile{};       // of owners that name none
  uint64_t budget_bytes = 0;      // hard, over all owners and whatever they choose
  uint64_t budget_bytes_max = 0;  // most that Resize may raise it to; 0: budget_bytes
  uint64_t tokens_max = 1 << 20;  // longest sequence of any owner
  const Clock* clock = nullptr;   // needed; must outlive the registry
  // Of each cache; none: host memory.
  std::function<std::unique_ptr<DeviceMemory>()> make_memory{};
};

/// What EvictToBudget did.
struct EvictReport {
  uint64_t owners_evicted = 0;
  uint64_t bytes_used = 0;  // afterwards; above the target: the rest is pinned or training's
};

/// Owners by name. Each combination of codecs and checkpoint layers has a cache of its own, made
/// when the first owner asks for it, and all of them pay from one budget.
///
/// Threads:  any. One lock (rank 3) for the map; it is not held while a cache works
/// Lifetime: must outlive the owner caches
class Registry {
 public:
  /// Errors: kInvalidArgument names the field; kNoSpace the budget holds no block
  static Result<std::unique_ptr<Registry>> Create(RegistryOptions options);
  ~Registry();

  /// The owner's cache, made if there is none. An inference owner starts with what is cached of
  /// `prompt` (may be empty); a training run starts empty and never publishes.
  ///
  /// Errors: kInvalidArgument it exists with other options, or these name layers that do not exist;
  ///         kNoSpace all that may be evicted is; as Cache::Create for codecs
  Result<std::shared_ptr<OwnerCache>> GetOrCreate(const Owner& owner, const OwnerOptions& options,
                                                  std::span<const TokenId> prompt = {});
  /// Null: there is none.
  std::shared_ptr<OwnerCache> Find(const Owner& owner) const;
  /// The owner's end, of a training run too. What it published stays cached. False: there is none.
  bool Release(const Owner& owner);
  /// Back to zero tokens. Errors: kNotFound
  Result<void> Clear(const Owner& owner);

  /// Brings the bytes in use down to `bytes`: first what is cached and nobody holds, then the least
  /// recently used inference owners. Never a training run.
  EvictReport EvictToBudget(uint64_t bytes);

  /// Moves the budget. Down: makes room as EvictToBudget does until no more than that is charged,
  /// so training runs stay. No slot of a live owner moves; caches give the memory beyond the new
  /// budget back where nobody holds any of it.
  ///
  /// Errors:  kTooLarge above budget_bytes_max; kNoSpace it holds no block of some owner's, or the
  ///          system refuses memory; kBusy training runs hold more. The budget is then as before;
  ///          what was evicted to get there is not brought back
  /// Threads: any; calls take turns
  Result<void> Resize(uint64_t bytes);

  uint64_t bytes_used() const;
  uint64_t budget_bytes() const;
  uint64_t owner_count() const;

 private:
  // One combination of codecs and checkpoint layers.
  struct Store {
    NumericProfile profile;
    std::vector<uint32_t> checkpoint_layers;
    std::vector<uint32_t> layer_numbers;  // [layers of the model]
    std::unique_ptr<DeviceMemory> memory;  // the cache's
    std::unique_ptr<cache::Core> cache;
  };

  explicit Registry(RegistryOptions options);

  Result<Store*> StoreFor(const OwnerOptions& options) QUIRE_REQUIRES(mutex_);
  Result<std::shared_ptr<OwnerCache>> Make(const Owner& owner, const OwnerOptions& options,
                                           Store& store, std::span<const TokenId> prompt);
  std::vector<cache::Core*> Caches() const;
  uint64_t EvictUnused(uint64_t blocks);
  uint64_t TrainingBytes() const;
  Result<void> Grow(uint64_t bytes, uint64_t more_bytes);
  Result<void> Shrink(uint64_t bytes, uint64_t less_bytes);
  bool EvictLeastRecent(const OwnerCache* except);

  const RegistryOptions options_;
  const Clock& clock_;
  // Its limit is the most that the budget may be. What it is less than that now is charged to
  // nobody, so that lowering it is one charge, which succeeds or changes nothing whoever else is
  // charging.
  quota::Ledger ledger_;
  Mutex resize_mutex_{LockRank{2}};  // one Resize at a time
  // Before owners_: they end first.
  std::vector<std::unique_ptr<Store>> stores_ QUIRE_GUARDED_BY(mutex_);
  mutable Mutex mutex_{LockRank{3}};
  uint64_t withheld_bytes_ QUIRE_GUARDED_BY(mutex_) = 0;  // of the ledger
  std::map<Owner, std::shared_ptr<OwnerCache>> owners_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_REGISTRY_H_

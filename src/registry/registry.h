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
#include "quire/registry.h"
#include "registry/owner_cache.h"

namespace quire::registry {

/// Threads, lifetime: as Registry
class RegistryImpl final : public Registry {
 public:
  /// As Registry::Create.
  static Result<std::unique_ptr<RegistryImpl>> Make(CacheOptions options);
  ~RegistryImpl() override;

  Result<std::shared_ptr<OwnerCache>> GetOrCreate(const Owner& owner, const OwnerOptions& options,
                                                  std::span<const TokenId> prompt) override;
  std::shared_ptr<OwnerCache> Find(const Owner& owner) const override;
  bool Release(const Owner& owner) override;
  Cache& requests() override { return *requests_; }
  Result<Cache*> CacheOf(const OwnerOptions& options) override;
  EvictReport EvictToBudget(uint64_t bytes) override;
  Result<void> Resize(uint64_t bytes) override;
  uint64_t bytes_used() const override { return budget_.used_bytes(); }
  uint64_t budget_bytes() const override { return budget_.bytes(); }
  uint64_t owner_count() const override;
  std::vector<OwnerStats> Owners() const override;

  /// Makes an inference owner of a sequence of requests(), which is never evicted.
  std::shared_ptr<OwnerCacheImpl> Adopt(std::unique_ptr<Sequence> sequence);
  void Dismiss(const std::shared_ptr<OwnerCacheImpl>& owner);

 private:
  // One combination of codecs and checkpoint layers.
  struct Store {
    NumericProfile profile;
    std::vector<uint32_t> checkpoint_layers;
    std::vector<uint32_t> layer_numbers;  // [layers of the model]
    std::unique_ptr<Cache> cache;
  };

  explicit RegistryImpl(CacheOptions options);

  Result<Store*> StoreFor(const OwnerOptions& options) QUIRE_REQUIRES(mutex_);
  Result<std::shared_ptr<OwnerCacheImpl>> MakeOwner(const Owner& owner, const OwnerOptions& options,
                                                    Store& store, std::span<const TokenId> prompt);
  std::vector<Cache*> Caches() const;
  bool EvictUnused();
  uint64_t LastingBytes() const;
  Result<void> Grow(uint64_t bytes);
  Result<void> Shrink(uint64_t bytes);
  bool EvictLeastRecent(const OwnerCacheImpl* except);

  const CacheOptions options_;
  SharedBudget budget_;
  Mutex resize_mutex_{LockRank::kRegistryResize};
  // Before owners_: they end first.
  std::vector<std::unique_ptr<Store>> stores_ QUIRE_GUARDED_BY(mutex_);
  std::unique_ptr<Cache> requests_;  // set once, by Create
  mutable Mutex mutex_{LockRank::kRegistry};
  uint64_t next_request_ QUIRE_GUARDED_BY(mutex_) = InferenceOwner::kFirstRequest;
  std::map<Owner, std::shared_ptr<OwnerCacheImpl>> owners_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_REGISTRY_H_

#include "registry/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/sync_point.h"
#include "env/clock.h"
#include "registry/request_cache.h"

namespace quire::registry {

namespace {

/// The geometry without some layers, those after them numbered down.
Geometry Without(const Geometry& geometry, std::span<const uint32_t> left_out,
                 std::vector<uint32_t>& numbers) {
  uint32_t next = 0;
  for (uint32_t layer = 0; layer < geometry.layer_count(); ++layer) {
    const bool out = std::ranges::binary_search(left_out, layer);
    numbers.push_back(out ? OwnerCacheImpl::kNoLayer : next++);
  }
  Geometry kept;
  for (LayerGroup group : geometry.groups) {
    std::vector<uint32_t> layers;
    for (const uint32_t layer : group.layers) {
      if (numbers[layer] != OwnerCacheImpl::kNoLayer) layers.push_back(numbers[layer]);
    }
    group.layers = std::move(layers);
    if (!group.layers.empty()) kept.groups.push_back(std::move(group));
  }
  return kept;
}

}  // namespace

RegistryImpl::RegistryImpl(CacheOptions options)
    : options_(std::move(options)), budget_(options_.hot_bytes, options_.hot_bytes_max) {}

RegistryImpl::~RegistryImpl() {
  MutexLock lock(mutex_);
  for (const auto& [owner, cache] : owners_) cache->End(OwnerState::kReleased);
  owners_.clear();
}

Result<std::unique_ptr<RegistryImpl>> RegistryImpl::Make(CacheOptions options) {
  if (options.shared_budget != nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "registry options: a shared budget: it has its own");
  }
  if (options.clock == nullptr) options.clock = &SystemClock();
  QUIRE_TRY(options.geometry.Validate());
  std::unique_ptr<RegistryImpl> registry(new RegistryImpl(std::move(options)));
  MutexLock lock(registry->mutex_);
  // The common store, so that options that cannot work fail now.
  QUIRE_ASSIGN(const Store* const common, registry->StoreFor({}));
  registry->requests_ = std::make_unique<RequestCache>(*common->cache, *registry);
  return registry;
}

Result<RegistryImpl::Store*> RegistryImpl::StoreFor(const OwnerOptions& options) {
  const std::vector<uint32_t>& left_out = options.checkpoint_layers;
  const uint32_t layers = options_.geometry.layer_count();
  for (size_t i = 0; i < left_out.size(); ++i) {
    if (left_out[i] >= layers || (i > 0 && left_out[i] <= left_out[i - 1])) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("checkpoint_layers: layer {} of a model with {} is no layer or not in "
                      "ascending order",
                      left_out[i], layers));
    }
  }
  if (left_out.size() == layers) {
    return Fail(ErrorCode::kInvalidArgument, "checkpoint_layers: all layers, nothing to cache");
  }
  const NumericProfile& profile = options.profile ? *options.profile : options_.profile;
  for (const auto& store : stores_) {
    if (store->profile == profile && store->checkpoint_layers == left_out) return store.get();
  }
  Store store{
      .profile = profile, .checkpoint_layers = left_out, .layer_numbers = {}, .cache = nullptr};
  CacheOptions made = options_;
  made.geometry = Without(options_.geometry, left_out, store.layer_numbers);
  made.profile = profile;
  made.hot_bytes = budget_.bytes();
  made.hot_bytes_max = std::max(options_.hot_bytes, options_.hot_bytes_max);
  made.shared_budget = &budget_;
  made.announce = options_.announce && stores_.empty();  // only requests publish
  QUIRE_ASSIGN(store.cache, Cache::Create(std::move(made)));
  return stores_.emplace_back(std::make_unique<Store>(std::move(store))).get();
}

Result<std::shared_ptr<OwnerCache>> RegistryImpl::GetOrCreate(const Owner& owner,
                                                              const OwnerOptions& options,
                                                              std::span<const TokenId> prompt) {
  const auto* inference = std::get_if<InferenceOwner>(&owner);
  if (inference != nullptr && inference->id >= InferenceOwner::kFirstRequest) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("inference {}: ids from 2^63 on are those of requests", inference->id));
  }
  Store* store = nullptr;
  const auto known = [&]() QUIRE_REQUIRES(mutex_) -> Result<std::shared_ptr<OwnerCacheImpl>> {
    const auto found = owners_.find(owner);
    if (found == owners_.end()) return nullptr;
    if (found->second->options() != options) {
      return Fail(ErrorCode::kInvalidArgument, OwnerName(owner) + " exists with other options");
    }
    found->second->Touch();
    return found->second;
  };
  {
    MutexLock lock(mutex_);
    QUIRE_ASSIGN(auto found, known());
    if (found) return found;
    QUIRE_ASSIGN(store, StoreFor(options));
  }
  // Made without the lock: it may need room that other owners must free.
  QUIRE_ASSIGN(auto made, MakeOwner(owner, options, *store, prompt));
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(auto found, known());
  if (found) return found;  // another thread was first; the new owner ends here
  made->Touch();
  owners_.emplace(owner, made);
  return made;
}

Result<std::shared_ptr<OwnerCacheImpl>> RegistryImpl::MakeOwner(const Owner& owner,
                                                                const OwnerOptions& options,
                                                                Store& store,
                                                                std::span<const TokenId> prompt) {
  const auto* training = std::get_if<TrainingOwner>(&owner);
  Identity identity = options.identity;
  if (training != nullptr) {
    identity.adapter = training->adapter;
    identity.adapter_version = training->version;
  }
  // A plan needs a token, whatever it is when nothing is looked up.
  const TokenId any = 0;
  const bool reuse = training == nullptr && !prompt.empty();
  const AcquireRequest request{.identity = &identity,
                               .tokens = prompt.empty() ? std::span(&any, 1) : prompt,
                               .reuse = reuse};
  while (true) {
    QUIRE_ASSIGN(auto plan, store.cache->Acquire(request));
    auto sequence = store.cache->Open(std::move(plan), {.publish = training == nullptr});
    if (sequence) {
      return std::make_shared<OwnerCacheImpl>(
          owner, options, *std::move(sequence), store.layer_numbers,
          [this](const OwnerCacheImpl& asking) {
            return EvictUnused() || EvictLeastRecent(&asking);
          },
          *options_.clock);
    }
    const bool room = sequence.error().code == ErrorCode::kNoSpace &&
                      (EvictUnused() || EvictLeastRecent(nullptr));
    if (room) continue;
    return Fail(sequence.error().code,
                fmt::format("{}: {}", OwnerName(owner), sequence.error().message));
  }
}

std::shared_ptr<OwnerCache> RegistryImpl::Find(const Owner& owner) const {
  MutexLock lock(mutex_);
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return nullptr;
  found->second->Touch();
  return found->second;
}

Result<Cache*> RegistryImpl::CacheOf(const OwnerOptions& options) {
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(Store* const store, StoreFor(options));
  return store->cache.get();
}

bool RegistryImpl::Release(const Owner& owner) {
  std::shared_ptr<OwnerCacheImpl> released;
  {
    MutexLock lock(mutex_);
    const auto found = owners_.find(owner);
    if (found == owners_.end()) return false;
    released = std::move(found->second);
    owners_.erase(found);
  }
  released->End(OwnerState::kReleased);
  return true;
}

uint64_t RegistryImpl::owner_count() const {
  MutexLock lock(mutex_);
  return owners_.size();
}

std::vector<OwnerStats> RegistryImpl::Owners() const {
  MutexLock lock(mutex_);
  std::vector<OwnerStats> owners;
  for (const auto& [owner, cache] : owners_) {
    owners.push_back({.owner = owner,
                      .tokens = cache->length(),
                      .bytes = cache->bytes(),
                      .last_access_us = cache->last_access_us(),
                      .evictable = cache->evictable()});
  }
  return owners;
}

std::vector<Cache*> RegistryImpl::Caches() const {
  MutexLock lock(mutex_);
  std::vector<Cache*> caches;
  caches.reserve(stores_.size());
  for (const auto& store : stores_) caches.push_back(store->cache.get());
  return caches;
}

// Evicts a block of every cache. False: there is none.
bool RegistryImpl::EvictUnused() {
  uint64_t evicted = 0;
  for (Cache* const cache : Caches()) evicted += cache->Evict(1);
  return evicted > 0;
}

// Of equal times the owner with the lower number goes. False: there is none.
bool RegistryImpl::EvictLeastRecent(const OwnerCacheImpl* except) {
  std::shared_ptr<OwnerCacheImpl> victim;
  {
    MutexLock lock(mutex_);
    uint64_t oldest_us = UINT64_MAX;
    for (const auto& [owner, cache] : owners_) {
      if (!cache->evictable() || cache.get() == except) continue;
      const uint64_t last_us = cache->last_access_us();
      if (victim && last_us >= oldest_us) continue;
      oldest_us = last_us;
      victim = cache;
    }
    if (!victim) return false;
    owners_.erase(victim->owner());
  }
  victim->End(OwnerState::kEvicted);
  return true;
}

EvictReport RegistryImpl::EvictToBudget(uint64_t bytes) {
  EvictReport report;
  while (bytes_used() > bytes) {
    if (EvictUnused()) continue;
    if (!EvictLeastRecent(nullptr)) break;
    ++report.owners_evicted;
  }
  report.bytes_used = bytes_used();
  return report;
}

// Bytes of owners that are not evicted. A lower bound: what slots cost besides their bytes is not
// counted.
uint64_t RegistryImpl::LastingBytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [owner, cache] : owners_) {
    if (!cache->evictable()) bytes += cache->bytes();
  }
  return bytes;
}

Result<void> RegistryImpl::Resize(uint64_t bytes) {
  MutexLock one_at_a_time(resize_mutex_);
  for (const Cache* const cache : Caches()) {
    if (bytes >= cache->block_bytes()) continue;
    return Fail(ErrorCode::kNoSpace,
                fmt::format("registry: a budget of {} bytes holds no block of {}", bytes,
                            cache->block_bytes()));
  }
  return bytes < budget_bytes() ? Shrink(bytes) : Grow(bytes);
}

Result<void> RegistryImpl::Grow(uint64_t bytes) {
  while (true) {
    const std::vector<Cache*> caches = Caches();
    for (Cache* const cache : caches) {
      // A cache that is larger already could not follow when the budget went down.
      if (cache->stats().hot_bytes_limit < bytes) QUIRE_TRY(cache->Resize(bytes));
    }
    AtSyncPoint("registry: caches have grown, the budget has not");
    MutexLock lock(mutex_);
    if (stores_.size() == caches.size()) return budget_.Resize(bytes);
    // There is a new one, made for the old budget.
  }
}

Result<void> RegistryImpl::Shrink(uint64_t bytes) {
  const auto busy = [&](uint64_t held) {
    return Fail(ErrorCode::kBusy,
                fmt::format("registry: training runs and requests hold {} bytes, more than a "
                            "budget of {}",
                            held, bytes));
  };
  if (const uint64_t held = LastingBytes(); held > bytes) return busy(held);  // nothing evicted
  while (!budget_.Resize(bytes)) {
    if (!EvictUnused() && !EvictLeastRecent(nullptr)) return busy(bytes_used());
  }
  for (Cache* const cache : Caches()) {
    // Where a live owner's slots prevent it the cache keeps its memory; the budget is what counts.
    if (auto resized = cache->Resize(bytes); !resized) {
      LogDebug("registry: {}", resized.error().message);
    }
  }
  return {};
}

std::shared_ptr<OwnerCacheImpl> RegistryImpl::Adopt(std::unique_ptr<Sequence> sequence) {
  std::vector<uint32_t> layers(options_.geometry.layer_count());
  std::iota(layers.begin(), layers.end(), 0u);
  MutexLock lock(mutex_);
  const Owner owner = InferenceOwner{next_request_++};
  auto made = std::make_shared<OwnerCacheImpl>(owner, OwnerOptions{}, std::move(sequence),
                                               std::move(layers), nullptr, *options_.clock);
  owners_.emplace(owner, made);
  return made;
}

void RegistryImpl::Dismiss(const std::shared_ptr<OwnerCacheImpl>& owner) {
  {
    MutexLock lock(mutex_);
    owners_.erase(owner->owner());  // unless it was released by name
  }
  owner->End(OwnerState::kReleased);
  owner->GiveBack();
}

}  // namespace quire::registry

namespace quire {

namespace {

nlohmann::ordered_json OwnersJson(std::span<const OwnerStats> owners) {
  auto json = nlohmann::ordered_json::array();
  for (const OwnerStats& each : owners) {
    const auto* const inference = std::get_if<InferenceOwner>(&each.owner);
    const bool is_request = inference != nullptr && inference->id >= InferenceOwner::kFirstRequest;
    json.push_back({{"owner", OwnerName(each.owner)},
                    {"kind", inference == nullptr ? "training"
                             : is_request         ? "request"
                                                  : "inference"},
                    {"tokens", each.tokens},
                    {"bytes", each.bytes},
                    {"last_access_us", each.last_access_us},
                    {"evictable", each.evictable}});
  }
  return json;
}

// Names that are not UTF-8 become U+FFFD.
std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string ToJson(std::span<const OwnerStats> owners) { return Dump(OwnersJson(owners)); }

std::string ToJson(const Registry& registry) {
  return Dump({{"budget_bytes", registry.budget_bytes()},
               {"bytes_used", registry.bytes_used()},
               {"owners", OwnersJson(registry.Owners())}});
}

Result<std::unique_ptr<Registry>> Registry::Create(CacheOptions options) {
  return registry::RegistryImpl::Make(std::move(options));
}

}  // namespace quire

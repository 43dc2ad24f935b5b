#include "registry/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace quire::registry {

namespace {

/// The geometry without some layers, those after them numbered down.
Geometry Without(const Geometry& geometry, std::span<const uint32_t> left_out,
                 std::vector<uint32_t>& numbers) {
  uint32_t next = 0;
  for (uint32_t layer = 0; layer < geometry.layer_count(); ++layer) {
    const bool out = std::ranges::binary_search(left_out, layer);
    numbers.push_back(out ? OwnerCache::kNoLayer : next++);
  }
  Geometry kept;
  for (LayerGroup group : geometry.groups) {
    std::vector<uint32_t> layers;
    for (const uint32_t layer : group.layers) {
      if (numbers[layer] != OwnerCache::kNoLayer) layers.push_back(numbers[layer]);
    }
    group.layers = std::move(layers);
    if (!group.layers.empty()) kept.groups.push_back(std::move(group));
  }
  return kept;
}

}  // namespace

Registry::Registry(RegistryOptions options)
    : options_(std::move(options)),
      clock_(*options_.clock),
      ledger_(std::max(options_.budget_bytes, options_.budget_bytes_max)) {
  MutexLock lock(mutex_);
  withheld_bytes_ = ledger_.limit_bytes() - options_.budget_bytes;
  QUIRE_CHECK(ledger_.TryCharge(withheld_bytes_));
}

Registry::~Registry() {
  MutexLock lock(mutex_);
  for (const auto& [owner, cache] : owners_) cache->End("released");
  owners_.clear();
}

Result<std::unique_ptr<Registry>> Registry::Create(RegistryOptions options) {
  QUIRE_TRY(options.geometry.Validate());
  if (options.clock == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "registry options: no clock");
  }
  if (options.budget_bytes_max != 0 && options.budget_bytes_max < options.budget_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("registry options: budget_bytes_max {} is below budget_bytes {}",
                            options.budget_bytes_max, options.budget_bytes));
  }
  if (!options.make_memory) {
    options.make_memory = [] { return MakeHostMemory(/*huge_pages=*/false); };
  }
  std::unique_ptr<Registry> registry(new Registry(std::move(options)));
  MutexLock lock(registry->mutex_);
  QUIRE_TRY(registry->StoreFor({}));  // the common one, so that what cannot work shows now
  return registry;
}

Result<Registry::Store*> Registry::StoreFor(const OwnerOptions& options) {
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
  Store store{.profile = profile,
              .checkpoint_layers = left_out,
              .layer_numbers = {},
              .memory = options_.make_memory(),
              .cache = nullptr};
  Geometry geometry = Without(options_.geometry, left_out, store.layer_numbers);
  QUIRE_ASSIGN(store.cache, cache::Core::Make({.geometry = std::move(geometry),
                                               .profile = profile,
                                               .hot_bytes = ledger_.limit_bytes() - withheld_bytes_,
                                               .hot_bytes_max = ledger_.limit_bytes(),
                                               .tokens_max = options_.tokens_max,
                                               .memory = store.memory.get(),
                                               .clock = options_.clock},
                                              &ledger_));
  return stores_.emplace_back(std::make_unique<Store>(std::move(store))).get();
}

Result<std::shared_ptr<OwnerCache>> Registry::GetOrCreate(const Owner& owner,
                                                          const OwnerOptions& options,
                                                          std::span<const TokenId> prompt) {
  Store* store = nullptr;
  const auto known = [&]() QUIRE_REQUIRES(mutex_) -> Result<std::shared_ptr<OwnerCache>> {
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
  // Made without the lock: it may need room that others give up.
  QUIRE_ASSIGN(auto made, Make(owner, options, *store, prompt));
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(auto found, known());
  if (found) return found;  // another thread was first; what was made ends here
  made->Touch();
  owners_.emplace(owner, made);
  return made;
}

Result<std::shared_ptr<OwnerCache>> Registry::Make(const Owner& owner, const OwnerOptions& options,
                                                   Store& store, std::span<const TokenId> prompt) {
  const auto* training = std::get_if<Training>(&owner);
  Identity identity = options.identity;
  if (training != nullptr) identity.adapter = training->adapter;
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
      return std::make_shared<OwnerCache>(
          owner, options, *std::move(sequence), store.layer_numbers,
          [this](const OwnerCache& asking) {
            return EvictUnused(1) > 0 || EvictLeastRecent(&asking);
          },
          clock_);
    }
    const bool room = sequence.error().code == ErrorCode::kNoSpace &&
                      (EvictUnused(1) > 0 || EvictLeastRecent(nullptr));
    if (room) continue;
    return Fail(sequence.error().code,
                fmt::format("{}: {}", OwnerName(owner), sequence.error().message));
  }
}

std::shared_ptr<OwnerCache> Registry::Find(const Owner& owner) const {
  MutexLock lock(mutex_);
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return nullptr;
  found->second->Touch();
  return found->second;
}

bool Registry::Release(const Owner& owner) {
  std::shared_ptr<OwnerCache> released;
  {
    MutexLock lock(mutex_);
    const auto found = owners_.find(owner);
    if (found == owners_.end()) return false;
    released = std::move(found->second);
    owners_.erase(found);
  }
  released->End("released");
  return true;
}

Result<void> Registry::Clear(const Owner& owner) {
  const auto found = Find(owner);
  if (!found) return Fail(ErrorCode::kNotFound, "there is no " + OwnerName(owner));
  return found->Clear();
}

uint64_t Registry::owner_count() const {
  MutexLock lock(mutex_);
  return owners_.size();
}

std::vector<cache::Core*> Registry::Caches() const {
  MutexLock lock(mutex_);
  std::vector<cache::Core*> caches;
  caches.reserve(stores_.size());
  for (const auto& store : stores_) caches.push_back(store->cache.get());
  return caches;
}

// Up to `blocks` blocks of every cache.
uint64_t Registry::EvictUnused(uint64_t blocks) {
  uint64_t evicted = 0;
  for (cache::Core* const cache : Caches()) evicted += cache->Evict(blocks);
  return evicted;
}

// Of equal times the lower owner goes. False: there is none.
bool Registry::EvictLeastRecent(const OwnerCache* except) {
  std::shared_ptr<OwnerCache> victim;
  {
    MutexLock lock(mutex_);
    uint64_t oldest_us = UINT64_MAX;
    for (const auto& [owner, cache] : owners_) {
      if (cache->training() || cache.get() == except) continue;
      const uint64_t last_us = cache->last_access_us();
      if (victim && last_us >= oldest_us) continue;
      oldest_us = last_us;
      victim = cache;
    }
    if (!victim) return false;
    owners_.erase(victim->owner());
  }
  victim->End("evicted");
  return true;
}

EvictReport Registry::EvictToBudget(uint64_t bytes) {
  EvictReport report;
  while (bytes_used() > bytes) {
    if (EvictUnused(1) > 0) continue;
    if (!EvictLeastRecent(nullptr)) break;
    ++report.owners_evicted;
  }
  report.bytes_used = bytes_used();
  return report;
}

uint64_t Registry::bytes_used() const {
  MutexLock lock(mutex_);  // for one moment of both
  return ledger_.used_bytes() - withheld_bytes_;
}

uint64_t Registry::budget_bytes() const {
  MutexLock lock(mutex_);
  return ledger_.limit_bytes() - withheld_bytes_;
}

// At least; what slots cost besides their bytes is not counted.
uint64_t Registry::TrainingBytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [owner, cache] : owners_) {
    if (cache->training()) bytes += cache->metrics().bytes;
  }
  return bytes;
}

Result<void> Registry::Resize(uint64_t bytes) {
  MutexLock one_at_a_time(resize_mutex_);
  if (bytes > ledger_.limit_bytes()) {
    return Fail(ErrorCode::kTooLarge, fmt::format("registry: a budget of {} bytes is above the {} "
                                                  "it was made for (budget_bytes_max)",
                                                  bytes, ledger_.limit_bytes()));
  }
  for (const cache::Core* const cache : Caches()) {
    if (bytes >= cache->block_bytes()) continue;
    return Fail(ErrorCode::kNoSpace,
                fmt::format("registry: a budget of {} bytes holds no block of {}", bytes,
                            cache->block_bytes()));
  }
  const uint64_t before = budget_bytes();
  return bytes < before ? Shrink(bytes, before - bytes) : Grow(bytes, bytes - before);
}

Result<void> Registry::Grow(uint64_t bytes, uint64_t more_bytes) {
  while (true) {
    const std::vector<cache::Core*> caches = Caches();
    for (cache::Core* const cache : caches) {
      // One that is larger already could not follow when the budget went down.
      if (cache->stats().hot_bytes_limit < bytes) QUIRE_TRY(cache->Resize(bytes));
    }
    MutexLock lock(mutex_);
    if (stores_.size() > caches.size()) continue;  // a new one, made for the old budget
    withheld_bytes_ -= more_bytes;
    ledger_.Refund(more_bytes);
    return {};
  }
}

Result<void> Registry::Shrink(uint64_t bytes, uint64_t less_bytes) {
  const auto busy = [&](uint64_t held) {
    return Fail(ErrorCode::kBusy,
                fmt::format("registry: training runs hold {} bytes, more than a budget of {}", held,
                            bytes));
  };
  if (const uint64_t held = TrainingBytes(); held > bytes) return busy(held);  // nothing evicted
  const auto withhold = [&] {
    MutexLock lock(mutex_);
    if (!ledger_.TryCharge(less_bytes)) return false;
    withheld_bytes_ += less_bytes;
    return true;
  };
  while (!withhold()) {
    if (EvictUnused(1) == 0 && !EvictLeastRecent(nullptr)) return busy(bytes_used());
  }
  for (cache::Core* const cache : Caches()) {
    // Where a live owner's slots are in the way it keeps its memory; the ledger is what counts.
    if (auto resized = cache->Resize(bytes); !resized) {
      LogDebug("registry: {}", resized.error().message);
    }
  }
  return {};
}

}  // namespace quire::registry

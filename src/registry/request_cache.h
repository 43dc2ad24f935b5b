// The cache that a registry gives an engine: its sequences are owners.
#ifndef QUIRE_REGISTRY_REQUEST_CACHE_H_
#define QUIRE_REGISTRY_REQUEST_CACHE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "registry/forwarding_cache.h"

namespace quire::registry {

class OwnerCacheImpl;
class RegistryImpl;

/// See Registry::requests. Other calls are passed on to the registry's cache.
///
/// Lifetime: `inner` and `registry` must outlive it and its sequences
class RequestCache final : public ForwardingCache {
 public:
  RequestCache(Cache& inner, RegistryImpl& registry)
      : ForwardingCache(inner), registry_(registry) {}

  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override {
    return OwnerOf(inner().Open(std::move(plan), options));
  }
  Result<std::unique_ptr<Opening>> BeginOpen(Plan plan, const SequenceOptions& options) override {
    return WrappedOpening::Of(
        inner().BeginOpen(std::move(plan), options),
        [this](Result<std::unique_ptr<Sequence>> made) { return OwnerOf(std::move(made)); });
  }
  /// The whole registry's budget, not this cache's alone.
  Result<void> Resize(uint64_t hot_bytes) override;

  /// Makes an owner, until it ends, of a sequence that was just opened.
  Result<std::unique_ptr<Sequence>> OwnerOf(Result<std::unique_ptr<Sequence>> made);
  void EndOwner(const std::shared_ptr<OwnerCacheImpl>& owner);

 private:
  RegistryImpl& registry_;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_REQUEST_CACHE_H_

#include "registry/request_cache.h"

#include "registry/forwarding_cache.h"
#include "registry/registry.h"

namespace quire::registry {

/// A sequence that an engine writes to, with its owner. If the owner is released by name, the next
/// call that writes fails; until the sequence ends its slots stay, because kernels may be reading.
class OwnedSequence final : public ForwardingSequence {
 public:
  OwnedSequence(RequestCache& cache, Sequence& inner) : ForwardingSequence(inner), cache_(cache) {}
  ~OwnedSequence() override {
    if (owner_ != nullptr) cache_.EndOwner(owner_);
  }
  void SetOwner(std::shared_ptr<OwnerCacheImpl> owner) { owner_ = std::move(owner); }

  Result<void> Reserve(uint64_t tokens) override {
    QUIRE_TRY(owner_->CheckAlive());
    return inner().Reserve(tokens);
  }
  Result<void> Append(uint32_t layer, const LayerRows& rows) override {
    QUIRE_TRY(owner_->CheckAlive());
    return inner().Append(layer, rows);
  }
  Result<void> Commit(std::span<const TokenId> tokens) override {
    QUIRE_TRY(owner_->CheckAlive());
    owner_->Touch();
    return inner().Commit(tokens);
  }
  Result<std::unique_ptr<Sequence>> Fork() override { return cache_.OwnerOf(inner().Fork()); }
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept_blocks) override {
    return cache_.OwnerOf(inner().Select(kept_blocks));
  }

 private:
  RequestCache& cache_;
  std::shared_ptr<OwnerCacheImpl> owner_;
};

void RequestCache::EndOwner(const std::shared_ptr<OwnerCacheImpl>& owner) {
  registry_.Dismiss(owner);
}

Result<void> RequestCache::Resize(uint64_t hot_bytes) { return registry_.Resize(hot_bytes); }

Result<std::unique_ptr<Sequence>> RequestCache::OwnerOf(Result<std::unique_ptr<Sequence>> made) {
  if (!made) return made;
  auto owned = std::make_unique<OwnedSequence>(*this, **made);
  owned->SetOwner(registry_.Adopt(*std::move(made)));
  return owned;
}

}  // namespace quire::registry

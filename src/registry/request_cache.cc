#include "registry/request_cache.h"

#include "registry/registry.h"

namespace quire::registry {

/// A sequence that an engine writes to, with its owner. If the owner is released by name, the next
/// call that writes fails; until the sequence ends its slots stay, because kernels may be reading.
class OwnedSequence final : public Sequence {
 public:
  OwnedSequence(RequestCache& cache, Sequence& inner) : cache_(cache), inner_(inner) {}
  ~OwnedSequence() override {
    if (owner_ != nullptr) cache_.EndOwner(owner_);
  }
  void SetOwner(std::shared_ptr<OwnerCacheImpl> owner) { owner_ = std::move(owner); }

  SequenceId id() const override { return inner_.id(); }
  uint64_t length() const override { return inner_.length(); }
  uint64_t cursor(uint32_t layer) const override { return inner_.cursor(layer); }
  SequenceStats stats() const override { return inner_.stats(); }
  Result<void> Reserve(uint64_t tokens) override {
    QUIRE_TRY(owner_->CheckAlive());
    return inner_.Reserve(tokens);
  }
  Result<void> Append(uint32_t layer, const LayerRows& rows) override {
    QUIRE_TRY(owner_->CheckAlive());
    return inner_.Append(layer, rows);
  }
  Result<void> Commit(std::span<const TokenId> tokens) override {
    QUIRE_TRY(owner_->CheckAlive());
    owner_->Touch();
    return inner_.Commit(tokens);
  }
  Result<void> Rollback(uint64_t position) override { return inner_.Rollback(position); }
  Result<std::unique_ptr<Sequence>> Fork() override { return cache_.OwnerOf(inner_.Fork()); }
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept_blocks) override {
    return cache_.OwnerOf(inner_.Select(kept_blocks));
  }
  uint64_t dropped_tokens() const override { return inner_.dropped_tokens(); }
  Result<void> Retain(const Retention& retention) override { return inner_.Retain(retention); }
  void Reset() override { inner_.Reset(); }
  bool MayEnd(uint64_t wait_us) override { return inner_.MayEnd(wait_us); }
  Result<void> Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                      std::span<float> out) const override {
    return inner_.Gather(layer, role, begin, end, out);
  }
  Result<PaddedRow> Padded(uint32_t layer, StreamRole role, uint64_t tokens_max) const override {
    return inner_.Padded(layer, role, tokens_max);
  }
  Result<BlockListView> View(uint32_t layer, StreamRole role, TokenRange range) const override {
    return inner_.View(layer, role, range);
  }
  LayerStreams Streams(uint32_t layer) const override { return inner_.Streams(layer); }
  LayerBlocks Blocks(uint32_t layer) const override { return inner_.Blocks(layer); }
  StreamedContext* streamed() override { return inner_.streamed(); }

 private:
  RequestCache& cache_;
  Sequence& inner_;  // the owner's
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

// Caches and sequences that pass everything on to another one.
#ifndef QUIRE_REGISTRY_FORWARDING_CACHE_H_
#define QUIRE_REGISTRY_FORWARDING_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "quire/sequence.h"

namespace quire::registry {

/// An opening that passes its sequence on as another one.
class WrappedOpening final : public Opening {
 public:
  using Wrap = std::function<Result<std::unique_ptr<Sequence>>(Result<std::unique_ptr<Sequence>>)>;
  static Result<std::unique_ptr<Opening>> Of(Result<std::unique_ptr<Opening>> inner, Wrap wrap) {
    if (!inner) return inner;
    return std::make_unique<WrappedOpening>(*std::move(inner), std::move(wrap));
  }

  WrappedOpening(std::unique_ptr<Opening> inner, Wrap wrap)
      : inner_(std::move(inner)), wrap_(std::move(wrap)) {}
  bool IsDone(uint64_t wait_us) override { return inner_->IsDone(wait_us); }
  Result<std::unique_ptr<Sequence>> Take() override { return wrap_(inner_->Take()); }

 private:
  const std::unique_ptr<Opening> inner_;
  const Wrap wrap_;
};

/// A base for sequences that differ from another one in a few calls.
///
/// Lifetime: `inner` must outlive all but its destructor
class ForwardingSequence : public Sequence {
 public:
  explicit ForwardingSequence(Sequence& inner) : inner_(inner) {}

  SequenceId id() const override { return inner_.id(); }
  uint64_t length() const override { return inner_.length(); }
  uint64_t cursor(uint32_t layer) const override { return inner_.cursor(layer); }
  SequenceStats stats() const override { return inner_.stats(); }
  Result<void> Reserve(uint64_t tokens) override { return inner_.Reserve(tokens); }
  Result<void> Append(uint32_t layer, const LayerRows& rows) override {
    return inner_.Append(layer, rows);
  }
  Result<void> Commit(std::span<const TokenId> tokens) override { return inner_.Commit(tokens); }
  Result<void> Rollback(uint64_t position) override { return inner_.Rollback(position); }
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
  Result<bool> AwaitLayer(uint32_t layer, uint64_t wait_us) override {
    return inner_.AwaitLayer(layer, wait_us);
  }
  bool arrives() const override { return inner_.arrives(); }

 protected:
  Sequence& inner() const { return inner_; }

 private:
  Sequence& inner_;
};

/// A base for caches that differ from another one in a few calls.
///
/// Lifetime: `inner` must outlive it
class ForwardingCache : public Cache {
 public:
  explicit ForwardingCache(Cache& inner) : inner_(inner) {}

  const CacheOptions& options() const override { return inner_.options(); }
  uint64_t block_bytes() const override { return inner_.block_bytes(); }
  Result<TenantId> AddTenant(const TenantOptions& options) override {
    return inner_.AddTenant(options);
  }
  Result<TenantId> FindTenant(std::string_view name) const override {
    return inner_.FindTenant(name);
  }
  Result<TenantStats> tenant_stats(TenantId tenant) const override {
    return inner_.tenant_stats(tenant);
  }
  Result<EraseReport> Erase(TenantId tenant) override { return inner_.Erase(tenant); }
  Result<void> RemoveTenant(TenantId tenant) override { return inner_.RemoveTenant(tenant); }
  Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) override {
    return inner_.SetLimits(tenant, quota_bytes, floor_bytes);
  }
  ChangeFeed* changes() override { return inner_.changes(); }
  Result<Plan> Acquire(const AcquireRequest& request) override { return inner_.Acquire(request); }
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) override {
    return inner_.Pin(request, ttl_us);
  }
  Result<void> Unpin(const AcquireRequest& request) override { return inner_.Unpin(request); }
  Result<Ticket> Load(Plan plan, const LoadOptions& options) override {
    return inner_.Load(std::move(plan), options);
  }
  Result<uint64_t> Prefetch(const AcquireRequest& request) override {
    return inner_.Prefetch(request);
  }
  Result<uint64_t> Demote(const AcquireRequest& request) override { return inner_.Demote(request); }
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override {
    return inner_.Open(std::move(plan), options);
  }
  Result<std::unique_ptr<Opening>> BeginOpen(Plan plan, const SequenceOptions& options) override {
    return inner_.BeginOpen(std::move(plan), options);
  }
  uint64_t Evict(uint64_t blocks) override { return inner_.Evict(blocks); }
  uint64_t Trim() override { return inner_.Trim(); }
  Result<void> Resize(uint64_t hot_bytes) override { return inner_.Resize(hot_bytes); }
  VerifyReport Verify() override { return inner_.Verify(); }
  CacheStats stats() const override { return inner_.stats(); }
  Result<std::vector<CacheEntry>> Entries(const EntriesRequest& request) override {
    return inner_.Entries(request);
  }
  std::string BlockMap() const override { return inner_.BlockMap(); }
  std::vector<FreeRuns> FreeSlots() const override { return inner_.FreeSlots(); }

 protected:
  Cache& inner() const { return inner_; }

 private:
  Cache& inner_;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_FORWARDING_CACHE_H_

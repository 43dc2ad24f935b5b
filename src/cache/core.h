// The cache: three state objects under one lock, and the verbs on them.
#ifndef QUIRE_CACHE_CORE_H_
#define QUIRE_CACHE_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/below/demote.h"
#include "cache/below/loading.h"
#include "cache/below/write_back.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/state/locked_state.h"
#include "cache/verbs/admit.h"
#include "cache/verbs/changes.h"
#include "cache/verbs/entries.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/holds.h"
#include "cache/verbs/lookup.h"
#include "cache/verbs/pin_verbs.h"
#include "cache/verbs/publish.h"
#include "cache/verbs/resizing.h"
#include "cache/verbs/tenants.h"
#include "quire/cache.h"

namespace quire::cache {

/// The public cache: each call runs one verb.
///
/// Threads: any
class Core final : public Cache {
 public:
  static Result<std::unique_ptr<Core>> Make(CacheOptions options);

  const CacheOptions& options() const override { return state_->options(); }
  uint64_t block_bytes() const override;
  Result<TenantId> AddTenant(const TenantOptions& options) override {
    return tenants_.Add(options);
  }
  Result<TenantId> FindTenant(std::string_view name) const override { return tenants_.Find(name); }
  Result<TenantStats> tenant_stats(TenantId tenant) const override {
    return tenants_.stats(tenant);
  }
  Result<EraseReport> Erase(TenantId tenant) override { return tenants_.Erase(tenant); }
  Result<void> RemoveTenant(TenantId tenant) override { return tenants_.Remove(tenant); }
  Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) override {
    return tenants_.SetLimits(tenant, quota_bytes, floor_bytes);
  }
  Result<Plan> Acquire(const AcquireRequest& request) override {
    return admission_.Acquire(request);
  }
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) override {
    return pinning_.Pin(request, ttl_us);
  }
  Result<void> Unpin(const AcquireRequest& request) override { return pinning_.Unpin(request); }
  Result<Ticket> Load(Plan plan, const LoadOptions& options) override {
    return loading_.Load(std::move(plan), options);
  }
  Result<uint64_t> Prefetch(const AcquireRequest& request) override;
  Result<uint64_t> Demote(const AcquireRequest& request) override {
    return cache::Demote(*state_, search_, request);
  }
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override {
    return admission_.Open(std::move(plan), options);
  }
  Result<std::unique_ptr<Opening>> BeginOpen(Plan plan, const SequenceOptions& options) override {
    return admission_.BeginOpen(std::move(plan), options);
  }
  uint64_t Evict(uint64_t blocks) override { return cache::Evict(*state_, blocks); }
  uint64_t Trim() override { return resizing_.Trim(); }
  Result<void> Resize(uint64_t hot_bytes) override { return resizing_.Resize(hot_bytes); }
  VerifyReport Verify() override { return publishing_.Verify(); }
  CacheStats stats() const override;
  Result<std::vector<CacheEntry>> Entries(const EntriesRequest& request) override {
    return EntriesOf(*state_, request);
  }
  ChangeFeed* changes() override { return changes_ ? &*changes_ : nullptr; }
  std::string BlockMap() const override { return BlockMapOf(*state_); }
  std::vector<FreeRuns> FreeSlots() const override { return FreeSlotsOf(*state_); }

  // For tests and benchmarks.

  LockedState& state() { return *state_; }
  const LockedState& state() const { return *state_; }
  Holds& holds() { return holds_; }
  /// Stops if anything about the directory is wrong.
  void CheckDirectory() const;

 private:
  explicit Core(std::unique_ptr<LockedState> state);

  const std::unique_ptr<LockedState> state_;
  Holds holds_;
  Search search_;
  Publishing publishing_;
  Sequences sequences_;
  const SequenceVerbs verbs_;
  Admission admission_;
  Loading loading_;
  std::optional<WriteBack> write_back_{};  // with a store
  Pinning pinning_;
  Tenants tenants_;
  Resizing resizing_;
  std::optional<Changes> changes_{};  // with CacheOptions::announce
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_CORE_H_

// One tenant or domain inside the cache: its account, its evictable blocks, what it remembers.
#ifndef QUIRE_CACHE_TENANT_H_
#define QUIRE_CACHE_TENANT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/ghosts.h"
#include "evict/batch_size.h"
#include "evict/lru.h"
#include "evict/policy.h"
#include "evict/reuse_estimator.h"
#include "index/radix_tree.h"
#include "quire/cache.h"
#include "quota/account.h"

namespace quire::cache {

/// A policy over the blocks of one tenant. The policy sees numbers that are dense within the
/// tenant, so its tables grow with the tenant's blocks and not with everybody's.
class EvictionList {
 public:
  explicit EvictionList(std::unique_ptr<evict::Policy> policy) : policy_(std::move(policy)) {}

  /// The facts' parent is a local number too.
  void Add(uint32_t local, const evict::BlockFacts& facts) { policy_->Add(BlockId(local), facts); }
  void Remove(uint32_t local) { policy_->Remove(BlockId(local)); }
  bool hears_requests() const { return policy_->hears_requests(); }
  void Begin(const evict::RequestFacts& request) { policy_->Begin(request); }
  void End() { policy_->End(); }
  void Advance(uint64_t time_ms) { policy_->Advance(time_ms); }
  /// As Remove, of a block that goes because room was needed.
  void Evict(uint32_t local) { policy_->Evict(BlockId(local)); }
  /// As Remove, of a block that goes for another reason.
  void Forget(uint32_t local) { policy_->Forget(BlockId(local)); }
  std::optional<uint32_t> Victim() const {
    const auto victim = policy_->Victim();
    if (!victim) return std::nullopt;
    return victim->number();
  }
  uint64_t size() const { return policy_->size(); }

 private:
  std::unique_ptr<evict::Policy> policy_;
};

/// Threads: the cache lock is held
struct Tenant {
  Tenant(TenantOptions made_with, TenantId published_to, uint64_t quota_bytes,
         std::unique_ptr<evict::Policy> policy)
      : options(std::move(made_with)),
        account_id(published_to),
        account(quota_bytes, options.floor_bytes),
        whole(std::move(policy)),
        passed(std::make_unique<evict::LruPolicy>()),
        aging(std::make_unique<evict::LruPolicy>()) {
    stats.name = options.name;
    stats.quota_bytes = options.quota_bytes;
    stats.floor_bytes = options.floor_bytes;
  }

  /// Gives a block of this account its local number.
  uint32_t AddBlock(BlockId block) {
    if (free_locals.empty()) {
      blocks.push_back(block);
      free_locals.reserve(blocks.capacity());  // so that RemoveBlock needs no memory
      return static_cast<uint32_t>(blocks.size() - 1);
    }
    const uint32_t local = free_locals.back();
    free_locals.pop_back();
    blocks[local] = block;
    return local;
  }
  void RemoveBlock(uint32_t local) {
    blocks[local] = BlockId::None();
    free_locals.push_back(local);
  }
  std::optional<BlockId> Victim(const EvictionList& list) const {
    const auto local = list.Victim();
    if (!local) return std::nullopt;
    return blocks[*local];
  }
  uint64_t block_count() const { return blocks.size() - free_locals.size(); }

  const TenantOptions options;
  const TenantId account_id;  // who pays for what it publishes: itself, or its domain
  uint32_t epoch = 0;         // raised by Erase
  uint32_t erasures = 0;      // of all who publish to this account
  quota::Account account;
  EvictionList whole;                // published blocks of the account that nobody leases
  EvictionList passed;               // leased, with parts that windows have passed and nobody holds
  uint64_t evictable_bytes = 0;      // in both lists
  EvictionList aging;                // whole again, what was used longest ago first; with a ttl
  std::vector<index::RootId> roots;  // of the account, with blocks
  std::vector<BlockId> blocks;       // by local number; none: free
  std::vector<uint32_t> free_locals;
  Ghosts ghosts;
  evict::ReuseEstimator reuse;  // of what was asked of the account
  evict::BatchSize batch;       // of what goes for its quota
  uint64_t pinned_bytes = 0;    // what Pin keeps of the account
  uint64_t pinned_blocks = 0;
  uint64_t slots_written = 0;  // held slots that it wrote in its present epoch
  uint64_t slots_stale = 0;    // and in older ones
  TenantStats stats;           // the counters; the rest is filled in when asked
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_TENANT_H_

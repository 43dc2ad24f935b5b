// One tenant or domain inside the cache: its account, its evictable blocks, what it remembers.
#ifndef QUIRE_CACHE_TENANT_H_
#define QUIRE_CACHE_TENANT_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/ghosts.h"
#include "evict/batch_size.h"
#include "evict/lru.h"
#include "evict/policies.h"
#include "evict/policy.h"
#include "evict/reuse_estimator.h"
#include "index/radix_tree.h"
#include "quire/cache.h"
#include "quota/account.h"

namespace quire::cache {

/// Orders on the blocks of one account. Those of all accounts share their tables by block id.
struct EvictionLists {
  explicit EvictionLists(std::string_view policy)
      : whole(evict::MakePolicy(policy)),
        passed(std::make_unique<evict::LruPolicy>()),
        aging(std::make_unique<evict::LruPolicy>()) {}
  /// For another account of the same cache.
  EvictionLists MakeSiblings() const {
    return EvictionLists(whole->MakeSibling(), passed->MakeSibling(), aging->MakeSibling());
  }

  /// Most heap that a block takes in all of them.
  uint64_t bytes_per_block() const {
    return whole->bytes_per_block() + passed->bytes_per_block() + aging->bytes_per_block();
  }

  std::unique_ptr<evict::Policy> whole;   // published blocks of the account that nobody leases
  std::unique_ptr<evict::Policy> passed;  // leased, with parts that windows have passed and nobody
                                          // holds
  std::unique_ptr<evict::Policy> aging;  // whole again, what was used longest ago first; with a ttl

 private:
  EvictionLists(std::unique_ptr<evict::Policy> of_whole, std::unique_ptr<evict::Policy> of_passed,
                std::unique_ptr<evict::Policy> of_aging)
      : whole(std::move(of_whole)), passed(std::move(of_passed)), aging(std::move(of_aging)) {}
};

/// Threads: the cache lock is held
struct Tenant {
  Tenant(TenantOptions made_with, TenantId published_to, uint64_t quota_bytes,
         EvictionLists eviction_lists)
      : options(std::move(made_with)),
        account_id(published_to),
        account(quota_bytes, options.floor_bytes),
        lists(std::move(eviction_lists)) {
    stats.name = options.name;
    stats.quota_bytes = options.quota_bytes;
    stats.floor_bytes = options.floor_bytes;
  }

  const TenantOptions options;
  const TenantId account_id;  // who pays for what it publishes: itself, or its domain
  uint32_t epoch = 0;         // raised by Erase
  quota::Account account;
  EvictionLists lists;
  uint64_t evictable_bytes = 0;      // in lists.whole and lists.passed
  std::vector<index::RootId> roots;  // of the account, with blocks
  uint64_t block_count = 0;
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

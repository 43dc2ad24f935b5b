// The blocks that can be evicted, and their order. Knows no tree, no bytes and no budgets.
#ifndef QUIRE_CACHE_STATE_EVICTION_ORDER_H_
#define QUIRE_CACHE_STATE_EVICTION_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/state/per_tenant.h"
#include "evict/classic_policies.h"
#include "evict/policies.h"
#include "evict/policy.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/identity.h"

namespace quire::cache {

/// Orders on the blocks of one account. Those of all accounts share their tables by block id.
struct EvictionLists {
  EvictionLists(std::string_view policy, bool has_ladder)
      : whole(evict::MakePolicy(policy)),
        passed(std::make_unique<evict::LruPolicy>()),
        aging(std::make_unique<evict::LruPolicy>()),
        twinned(has_ladder ? std::make_unique<evict::LruPolicy>() : nullptr) {}
  /// The lists of another account of the same cache.
  EvictionLists MakeSiblings() const {
    return EvictionLists(whole->MakeSibling(), passed->MakeSibling(), aging->MakeSibling(),
                         twinned != nullptr ? twinned->MakeSibling() : nullptr);
  }

  /// Most heap that a block takes in all lists.
  uint64_t bytes_per_block() const {
    return whole->bytes_per_block() + passed->bytes_per_block() + aging->bytes_per_block() +
           (twinned != nullptr ? twinned->bytes_per_block() : 0);
  }

  std::unique_ptr<evict::Policy> whole;    // published blocks of the account without leases
  std::unique_ptr<evict::Policy> passed;   // leased, with slots outside their windows that have no
                                           // holder
  std::unique_ptr<evict::Policy> aging;    // the same blocks as `whole`, least recently used first;
                                           // with a ttl
  std::unique_ptr<evict::Policy> twinned;  // those of `whole` that have twins, least recently used
                                           // first; null without a precision ladder

 private:
  EvictionLists(std::unique_ptr<evict::Policy> of_whole, std::unique_ptr<evict::Policy> of_passed,
                std::unique_ptr<evict::Policy> of_aging, std::unique_ptr<evict::Policy> of_twinned)
      : whole(std::move(of_whole)),
        passed(std::move(of_passed)),
        aging(std::move(of_aging)),
        twinned(std::move(of_twinned)) {}
};

/// The list of evictable blocks that contains a block.
enum class Listed : uint8_t {
  kNowhere = 1,
  kWhole = 2,  // no lease: it can be evicted as a whole
  kSlots = 3,  // leased, but has slots outside its window, or twins, without holders
};

/// The part of a block that is evicted.
enum class Goes : uint8_t {
  kWhole = 1,
  kSlots = 2,  // slots outside windows, and twins, of a leased block
  kTwins = 3,  // of a block without leases: they are evicted before it
};

/// The next eviction.
struct Victim {
  BlockId block{};
  Goes goes = Goes::kWhole;
  uint64_t stamp = 0;  // order of listing, over all accounts
  uint64_t bytes = 0;  // that the eviction frees
};

/// What can be evicted of a block now.
struct Evictable {
  Listed listed = Listed::kNowhere;
  uint64_t bytes = 0;
  uint64_t twin_bytes = 0;  // twins' share of `bytes`

  /// Whether a whole block can be left without its twins.
  bool is_twinned() const {
    return listed == Listed::kWhole && twin_bytes > 0 && twin_bytes < bytes;
  }
};

/// The blocks that can be evicted, a list of them for each account in the order of the policy, and
/// the time of their last use. Passes the uses of paths, and the callers' priorities for blocks, to
/// the policies.
///
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: the clock must outlive it
class EvictionOrder {
 public:
  /// With the default tenant's account.
  EvictionOrder(const Clock& clock, std::string_view policy, bool has_ladder = false);

  /// Blocks of the account expire after `ttl_us` without use; 0: never. RemoveAccount needs an
  /// account without blocks.
  void AddAccount(TenantId account, uint64_t ttl_us);
  void RemoveAccount(TenantId account) { accounts_.Remove(account); }
  /// Heap that each account's policy may take for blocks that are gone.
  void SetHistory(uint64_t bytes_each);

  /// Takes memory for blocks with lower ids than this, so that List needs none for itself.
  void ReserveBlocks(uint32_t end) {
    if (end > listings_.size()) listings_.resize(std::max<size_t>(end, 2 * listings_.size()));
  }
  /// Puts a block into the list where it now belongs, as its most recent one if it was not there.
  /// Its priority is filled in here.
  void List(BlockId block, TenantId account, const Evictable& what, evict::BlockFacts facts);
  Listed listed(BlockId block) const {
    return block.number() < listings_.size() ? listings_[block.number()].what.listed
                                             : Listed::kNowhere;
  }
  /// The time when its last holder released it; nothing: it is held.
  std::optional<uint64_t> unused_since_us(BlockId block) const {
    if (listed(block) != Listed::kWhole) return std::nullopt;
    return listings_[block.number()].listed_us;
  }
  /// The lock was released: blocks listed from now on are listed later.
  void EndHold() { hold_us_.reset(); }
  /// The block is gone, because room was needed (`evicted`) or for another reason.
  void Remove(BlockId block, bool evicted);
  /// The block stays in the cache, but is in no list for now.
  void Unlist(BlockId block);
  /// Sets the priority of a block, and until when.
  void Retain(BlockId block, uint8_t priority, uint64_t until_us);

  /// The next victim of an account: the least recent of both lists.
  std::optional<Victim> VictimOf(TenantId account) const;
  /// The least recent of the accounts' next victims for which `may_go(account, victim)` holds.
  template <typename MayGo>
  std::optional<Victim> OldestVictim(const MayGo& may_go) const {
    std::optional<Victim> oldest;
    accounts_.ForEach([&](TenantId account, const Account&) {
      const auto victim = VictimOf(account);
      if (!victim || (oldest && oldest->stamp < victim->stamp)) return;
      if (may_go(account, *victim)) oldest = victim;
    });
    return oldest;
  }
  std::optional<Victim> OldestVictim() const {
    return OldestVictim([](TenantId, const Victim&) { return true; });
  }
  /// The policy's next victim among the blocks without leases.
  std::optional<BlockId> WholeVictim(TenantId account) const {
    return accounts_[account].lists.whole->Victim();
  }
  /// A block of an account that was not used for its ttl.
  std::optional<BlockId> Expired(TenantId account) const;
  uint64_t listed_whole(TenantId account) const { return accounts_[account].lists.whole->size(); }
  uint64_t listed_slots(TenantId account) const { return accounts_[account].lists.passed->size(); }
  uint64_t evictable_bytes(TenantId account) const { return accounts_[account].evictable_bytes; }
  /// Does not count so many bytes of an account as evictable for a while.
  void Withhold(TenantId account, uint64_t bytes) { accounts_[account].evictable_bytes -= bytes; }
  void GiveBack(TenantId account, uint64_t bytes) { accounts_[account].evictable_bytes += bytes; }

  /// Whether the policy uses how paths are used.
  bool hears_requests() const { return accounts_[kDefaultTenant].lists.whole->hears_requests(); }
  /// A path of an account was used; the blocks that are listed until EndUse were used by it. As
  /// evict::Policy::BeginSome.
  bool BeginUse(TenantId account, const evict::RequestFacts& request,
                std::unique_ptr<evict::Policy::Use>& use, uint64_t& keys_left) {
    return accounts_[account].lists.whole->BeginSome(request, use, keys_left);
  }
  void EndUse(TenantId account) { accounts_[account].lists.whole->End(); }
  /// Suspends the use between holds of the lock.
  std::unique_ptr<evict::Policy::Use> PauseUse(TenantId account) {
    return accounts_[account].lists.whole->Pause();
  }
  void ResumeUse(TenantId account, std::unique_ptr<evict::Policy::Use> use) {
    accounts_[account].lists.whole->Resume(std::move(use));
  }
  /// Whether policies use time.
  bool hears_time() const { return accounts_[kDefaultTenant].lists.whole->hears_time(); }
  /// Tells the policies the time.
  void Advance();

 private:
  struct Account {
    EvictionLists lists;
    uint64_t ttl_us = 0;
    uint64_t evictable_bytes = 0;  // in lists.whole and lists.passed
    uint64_t twin_bytes = 0;       // of these, twins in lists.twinned
  };
  /// Where a block is listed.
  struct Listing {
    TenantId account{};
    uint8_t priority = 0;  // the caller's priority; only with an end
    Evictable what{};
    uint64_t stamp = 0;              // order of listing, over all lists
    uint64_t listed_us = 0;          // when its last lease as a whole block ended
    uint64_t retained_until_us = 0;  // the priority's end; 0: it has none
  };

  void Leave(BlockId block, bool stays, bool evicted);
  void ListTwins(Account& owner, BlockId block, const Evictable& before, const Evictable& now);

  const Clock& clock_;
  PerTenant<Account> accounts_;
  std::optional<uint64_t> hold_us_{};  // when something was listed first in this hold of the lock
  std::vector<Listing> listings_;      // by BlockId, up to the highest listed
  uint64_t next_stamp_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_EVICTION_ORDER_H_

// Who pays, and who goes first: tenants, the budget, quotas and floors, eviction orders, times to
// live, erase epochs. Knows no tree and no bytes.
#ifndef QUIRE_CACHE_ACCOUNTS_H_
#define QUIRE_CACHE_ACCOUNTS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/slot_classes.h"
#include "evict/batch_size.h"
#include "evict/classic_policies.h"
#include "evict/policies.h"
#include "evict/policy.h"
#include "evict/reuse_estimator.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/stats.h"
#include "quota/ledger.h"

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
  std::unique_ptr<evict::Policy> passed;  // leased, with slots outside their windows and nobody
                                          // holds
  std::unique_ptr<evict::Policy> aging;  // whole again, what was used longest ago first; with a ttl

 private:
  EvictionLists(std::unique_ptr<evict::Policy> of_whole, std::unique_ptr<evict::Policy> of_passed,
                std::unique_ptr<evict::Policy> of_aging)
      : whole(std::move(of_whole)), passed(std::move(of_passed)), aging(std::move(of_aging)) {}
};

/// In which list of what can be evicted a block stands.
enum class Listed : uint8_t {
  kNowhere = 1,
  kWhole = 2,  // nobody leases it: it can go as a whole
  kSlots = 3,  // leased, but has slots outside its window, or twins, that nobody holds
};

/// A request for room on behalf of a tenant.
struct Asker {
  TenantId tenant = kDefaultTenant;
  bool may_evict = true;
};

/// What of a block goes.
enum class Goes : uint8_t {
  kWhole = 1,
  kSlots = 2,  // what windows have passed, and twins, of a leased block
  kTwins = 3,  // of a block that nobody leases: they go before it
};

/// What can be evicted next.
struct Victim {
  BlockId block{};
  Goes goes = Goes::kWhole;
  uint64_t stamp = 0;  // order of listing, over all accounts
  uint64_t bytes = 0;  // that it gives back
};

/// What of a block can be evicted now.
struct Evictable {
  Listed listed = Listed::kNowhere;
  uint64_t bytes = 0;
  uint64_t twin_bytes = 0;  // of these, of twins
};

/// Who used a path.
enum class User : uint8_t {
  kRequest = 1,  // it asked for its prompt, and computed the rest
  kPlan = 2,     // it asked for its prompt and went no further
  kOther = 3,    // nobody asked whether the path was there: a fork, or a sequence after a Reset
};

/// How a path of published blocks was used.
struct PathUse {
  std::span<const uint64_t> keys{};  // BlockFacts::key of its blocks, root first
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  bool asked = true;        // what of it was there
  uint64_t hit_blocks = 0;  // that were
  User user = User::kRequest;
};

/// All tenants of a cache and what they pay for. A tenant's own blocks are paid for by its account:
/// its own, or its domain's.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK)
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: `classes` and the shared ledger must outlive it
class Accounts {
 public:
  /// What is remembered of each slot.
  static constexpr uint64_t kBytesPerSlot = sizeof(TenantId);

  /// With a `shared` ledger the bytes are charged to that too, and others may use it up.
  Accounts(const SlotClasses& classes, const Clock& clock, std::string_view policy,
           EvictionBatch batch, const Capacity& capacity, quota::Ledger* shared);

  // Tenants. Ids are those of Add; 0 is the default tenant.

  /// Errors: as Cache::AddTenant
  Result<TenantId> Add(const TenantOptions& options);
  Result<TenantId> Find(std::string_view name) const;
  /// Errors: kNotFound there is no such tenant
  Result<void> Check(TenantId tenant) const;
  /// Errors: as Cache::RemoveTenant
  Result<void> CheckRemovable(TenantId tenant) const;
  /// Takes out a tenant that pays for nothing any more. One of the same name begins with its epoch.
  /// Errors: kBusy it still does
  Result<void> Remove(TenantId tenant);
  /// Calls visit(tenant) for each by ascending id.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      if (tenants_[i] != gone_) visit(TenantId(i));
    }
  }
  const TenantOptions& options(TenantId tenant) const { return At(tenant).options; }
  /// Who pays for what a tenant publishes.
  TenantId account_of(TenantId tenant) const {
    return tenants_[tenant.number()] == gone_ ? tenant : At(tenant).account_id;
  }
  /// Raised by each erasure.
  uint32_t epoch(TenantId tenant) const { return At(tenant).epoch; }
  /// Forgets what is known of the requests of its account too.
  void Erase(TenantId tenant);
  /// The counters that are not derived from anything else.
  TenantStats& counters(TenantId tenant) { return At(tenant).stats; }
  /// With all that is known here filled in.
  TenantStats stats(TenantId tenant) const;

  // Bytes.

  const quota::Ledger& ledger() const { return ledger_; }
  uint64_t quota_bytes(TenantId tenant) const { return At(tenant).account.quota_bytes(); }
  uint64_t capacity_bytes(TenantId tenant) const { return At(tenant).account.capacity_bytes(); }
  uint64_t floors_bytes() const;
  /// Charges the budget and the tenant, or (false) nothing. The quota must have room.
  [[nodiscard]] bool TryCharge(TenantId tenant, uint64_t bytes);
  void Refund(TenantId tenant, uint64_t bytes);
  /// Who pays for a slot that was taken; its charge is in TryCharge. Needs ReserveSlots.
  void SetPayer(SlotId slot, TenantId tenant) { payers_[slot.number()] = tenant; }
  void ReserveSlots(uint32_t end) {
    if (end > payers_.size()) payers_.resize(end);
  }
  TenantId payer(SlotId slot) const { return payers_[slot.number()]; }
  /// Another account pays for it from now on.
  void MoveCharge(SlotId slot, TenantId to);
  /// The slot is free.
  void RefundSlot(SlotId slot) { Refund(payer(slot), classes_.charge_bytes(slot)); }
  /// What a budget pays for: the ledger's limit, and what is remembered of blocks that are gone.
  void SetCapacity(const Capacity& capacity);
  /// Blocks that each account may remember.
  uint64_t share() const { return share_; }
  /// Slots held that a tenant wrote, by the epoch it wrote them in.
  void CountWritten(TenantId tenant, uint32_t epoch, int64_t slots);
  uint64_t stale_slots(TenantId tenant) const { return At(tenant).slots_stale; }
  /// What an account may pin leaves the others their floors.
  uint64_t PinLimit(TenantId account) const;
  uint64_t pinned_bytes(TenantId account) const { return At(account).pinned_bytes; }
  uint64_t pinned_blocks(TenantId account) const { return At(account).pinned_blocks; }
  void CountPinned(TenantId account, int64_t blocks, int64_t bytes);

  // Room.

  /// Most bytes that could be taken for a tenant now.
  uint64_t CapacityBytes(const Asker& asker) const;
  /// Whether `bytes` more fit when all that may go for them has gone. An empty message: it is the
  /// budget that is full.
  Result<void> CheckCapacity(const Asker& asker, uint64_t bytes) const;
  /// Bytes of an account that are not counted as evictable for a while.
  void Withhold(TenantId account, uint64_t bytes) { At(account).evictable_bytes -= bytes; }
  void GiveBack(TenantId account, uint64_t bytes) { At(account).evictable_bytes += bytes; }
  uint64_t evictable_bytes(TenantId account) const { return At(account).evictable_bytes; }
  /// What VictimFor will surely find, one after the other. Nobody's (none): of all blocks.
  uint64_t EvictableFor(TenantId tenant) const;
  /// How many bytes must be free of the tenant's quota, and of the budget, when `needed` are taken:
  /// these, and what is evicted in advance.
  uint64_t WantedOfQuota(TenantId tenant, uint64_t needed);
  uint64_t WantedOfBudget(uint64_t needed);

  // What can be evicted.

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
  /// When its last holder let go of it; nothing: it is held.
  std::optional<uint64_t> unused_since_us(BlockId block) const {
    if (listed(block) != Listed::kWhole) return std::nullopt;
    return listings_[block.number()].listed_us;
  }
  /// The lock was released: what is listed from now on is listed later.
  void EndHold() { hold_us_.reset(); }
  /// The block is gone, because room was needed or for another reason.
  void Remove(BlockId block, bool evicted);
  /// It stays, but is in no list for now.
  void Unlist(BlockId block);
  /// What goes first of an account: the least recent of both lists.
  std::optional<Victim> VictimOf(TenantId account) const;
  /// The least recent over all accounts that it does not bring below their floors; of one's own
  /// account always. Nobody's (none): of all.
  std::optional<Victim> VictimFor(TenantId tenant) const;
  /// The least recent of all.
  std::optional<Victim> OldestVictim() const;
  /// The first that the policy would give up of the blocks that nobody leases.
  std::optional<BlockId> WholeVictim(TenantId account) const {
    return At(account).lists.whole->Victim();
  }
  /// A block of an account that nobody has used for its ttl.
  std::optional<BlockId> Expired(TenantId account) const;
  uint64_t listed_whole(TenantId account) const { return At(account).lists.whole->size(); }
  uint64_t listed_slots(TenantId account) const { return At(account).lists.passed->size(); }

  // Uses.

  /// A tenant used a path of its account; the blocks that are listed until EndUse were used by it.
  void BeginUse(TenantId tenant, uint32_t epoch, const PathUse& use);
  void EndUse(TenantId tenant) { At(account_of(tenant)).lists.whole->End(); }
  /// Between holds of the lock it is under way no more.
  std::unique_ptr<evict::Policy::Use> PauseUse(TenantId tenant) {
    return At(account_of(tenant)).lists.whole->Pause();
  }
  void ResumeUse(TenantId tenant, std::unique_ptr<evict::Policy::Use> use) {
    At(account_of(tenant)).lists.whole->Resume(std::move(use));
  }
  /// How much a block is wanted, and until when.
  void Retain(BlockId block, uint8_t priority, uint64_t until_us);
  bool heeds_priorities() const { return heeds_priorities_; }
  /// Whether policies go by time.
  bool hears_time() const { return hears_time_; }
  void Advance();

 private:
  struct Tenant {
    Tenant(TenantOptions made_with, TenantId published_to, uint64_t quota_bytes,
           EvictionLists eviction_lists);

    const TenantOptions options;
    const TenantId account_id;  // who pays for what it publishes: itself, or its domain
    uint32_t epoch = 0;
    quota::Account account;
    EvictionLists lists;
    uint64_t evictable_bytes = 0;  // in lists.whole and lists.passed
    evict::ReuseEstimator reuse;   // of what was asked of the account
    evict::BatchSize batch;        // of what goes for its quota
    uint64_t pinned_bytes = 0;     // what Pin keeps of the account
    uint64_t pinned_blocks = 0;
    uint64_t slots_written = 0;  // held slots that it wrote in its present epoch
    uint64_t slots_stale = 0;    // and in older ones
    TenantStats stats;           // the counters; the rest is filled in when asked
  };
  /// Where a block is listed.
  struct Listing {
    TenantId account{};
    uint8_t priority = 0;  // as callers asked; only with an end
    Evictable what{};
    uint64_t stamp = 0;              // order of listing, over all lists
    uint64_t listed_us = 0;          // when it was last let go of as a whole
    uint64_t retained_until_us = 0;  // the priority's end; 0: nobody asked for one
  };

  Tenant& At(TenantId tenant) { return *tenants_[tenant.number()]; }
  const Tenant& At(TenantId tenant) const { return *tenants_[tenant.number()]; }
  void Leave(BlockId block, bool stays, bool evicted);
  uint64_t WantedBytes(evict::BatchSize& batch, uint64_t needed, uint64_t unused,
                       uint64_t capacity) const;
  void ShareMemory();
  uint32_t SamplesPerTenant() const;

  const SlotClasses& classes_;
  const Clock& clock_;
  std::optional<uint64_t> hold_us_{};  // when something was listed first in this hold of the lock
  const EvictionBatch batch_mode_;
  const bool heeds_priorities_;
  const bool hears_time_;
  quota::Ledger ledger_;
  // By TenantId. Those that were removed are all the same one, which may have nothing: who comes
  // too late with such an id is refused like anyone without room.
  std::vector<std::shared_ptr<Tenant>> tenants_;
  std::shared_ptr<Tenant> gone_;
  std::map<std::string, uint32_t, std::less<>> removed_;  // epochs of those that were, by name
  uint32_t live_ = 0;                                     // tenants
  std::vector<TenantId> payers_;                          // by SlotId, up to the highest used
  std::vector<Listing> listings_;                         // by BlockId, up to the highest listed
  evict::BatchSize batch_;                                // of what goes for the budget
  uint64_t memory_slots_ = 0;  // sealed slots whose charges pay for memory
  uint64_t share_ = 0;         // of these, for each tenant
  uint64_t next_stamp_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_ACCOUNTS_H_

// Which tenant pays, and whose blocks are evicted for which tenant: tenants, their charges and the
// order of eviction together. Knows no tree and no bytes.
#ifndef QUIRE_CACHE_STATE_ACCOUNTS_H_
#define QUIRE_CACHE_STATE_ACCOUNTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "cache/state/charges.h"
#include "cache/state/eviction_order.h"
#include "cache/state/ghosts.h"
#include "cache/state/per_tenant.h"
#include "cache/state/slot_classes.h"
#include "cache/state/tenant_table.h"
#include "evict/batch_size.h"
#include "evict/policy.h"
#include "evict/reuse_estimator.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/stats.h"
#include "quota/ledger.h"

namespace quire::cache {

/// A request for room on behalf of a tenant.
struct Asker {
  TenantId tenant = kDefaultTenant;
  bool may_evict = true;
};

/// The kind of user of a path.
enum class User : uint8_t {
  kRequest = 1,  // it asked for its prompt, and computed the rest
  kPlan = 2,     // it asked for its prompt and went no further
  kOther = 3,    // no lookup asked for the path: a fork, or a sequence after a Reset
};

/// How a path of published blocks was used.
struct PathUse {
  std::span<const uint64_t> keys{};  // BlockFacts::key of its blocks, root first
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  bool asked = true;        // whether a lookup asked for the path
  uint64_t hit_blocks = 0;  // blocks that the lookup found
  User user = User::kRequest;
};

/// How far a use of a path was counted.
struct UseProgress {
  uint64_t counted = 0;  // of the keys that were looked up, from the first on
  uint64_t touched = 0;  // of all keys, from the last on
  std::unique_ptr<evict::Policy::Use> begun{};
};

/// All tenants of a cache, the bytes they pay for and those that can be evicted. Questions about
/// one of the objects below go to that object; the calls here need several of them: adding and
/// removing tenants, how much room a request can get and from which tenants, and shares of memory
/// for blocks that are gone.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK)
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: `classes` and the shared ledger must outlive it
class Accounts {
 public:
  /// With a `shared` ledger the bytes are charged to that too, and other caches may use it up.
  Accounts(const SlotClasses& classes, const Clock& clock, std::string_view policy,
           EvictionBatch batch, const Capacity& capacity, quota::Ledger* shared);
  Accounts(const Accounts&) = delete;  // its parts know each other
  Accounts& operator=(const Accounts&) = delete;

  const TenantTable& tenants() const { return tenants_; }
  Charges& charges() { return charges_; }
  const Charges& charges() const { return charges_; }
  EvictionOrder& order() { return order_; }
  const EvictionOrder& order() const { return order_; }

  /// Errors: as Cache::AddTenant
  Result<TenantId> Add(const TenantOptions& options);
  /// Removes a tenant that pays for nothing any more. A new tenant of the same name begins with its
  /// epoch.
  /// Errors: kBusy it still does
  Result<void> Remove(TenantId tenant);
  /// Whether these limits are valid, whatever the tenant holds. Errors: as Cache::SetLimits
  Result<void> CheckLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) const;
  /// Errors: as Cache::SetLimits
  Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes);
  /// Raises its epoch, and forgets the statistics of its account's requests.
  void Erase(TenantId tenant);
  /// The counters that are not derived from anything else.
  TenantStats& counters(TenantId tenant) { return records_[tenant].counters; }
  /// The ghosts of an account's blocks.
  Ghosts& ghosts(TenantId account) { return records_[account].ghosts; }
  /// The statistics of a tenant, with all derived fields filled in.
  TenantStats stats(TenantId tenant) const;

  /// Sets what the budget pays for: the ledger's limit, and the memory for blocks that are gone.
  void SetCapacity(const Capacity& capacity);
  /// Blocks that each account may remember.
  uint64_t share() const { return share_; }

  /// Most bytes that a tenant could take now.
  uint64_t CapacityBytes(const Asker& asker) const;
  /// Whether `bytes` more fit when all blocks that may be evicted for them are gone. An error with
  /// an empty message: the budget is full.
  Result<void> CheckCapacity(const Asker& asker, uint64_t bytes) const;
  /// Bytes that repeated VictimFor will find for certain. TenantId::None(): of all blocks.
  uint64_t EvictableFor(TenantId tenant) const;
  /// The least recent block over all accounts that keep their floors without it; blocks of the
  /// tenant's own account are always candidates. TenantId::None(): over all accounts.
  std::optional<Victim> VictimFor(TenantId tenant) const;
  /// How many bytes must be free of the tenant's quota, and of the budget, to take `needed`: these,
  /// and the bytes that are evicted in advance.
  uint64_t WantedOfQuota(TenantId tenant, uint64_t needed);
  uint64_t WantedOfBudget(uint64_t needed);

  /// A tenant used a path of its account; the blocks listed between the end of this and
  /// EvictionOrder::EndUse were used by it. Looks at `keys_left` keys at most, and counts them
  /// down. False: call again in another hold of the lock; until then no use is under way.
  bool BeginUse(TenantId tenant, uint32_t epoch, const PathUse& use, UseProgress& progress,
                uint64_t& keys_left);

 private:
  Result<void> CheckFloor(const std::string& name, uint64_t floor_bytes,
                          uint64_t others_bytes) const;
  /// The other data of a tenant.
  struct Record {
    evict::ReuseEstimator reuse;  // of lookups in the account
    Ghosts ghosts;                // of blocks of the account
    evict::BatchSize batch;       // of evictions for its quota
    TenantStats counters;         // the derived fields are filled in by stats
  };

  bool CountUse(TenantId account, std::span<const uint64_t> asked, std::span<const uint64_t> keys,
                UseProgress& progress, uint64_t& keys_left);
  uint64_t WantedBytes(evict::BatchSize& batch, uint64_t needed, uint64_t unused,
                       uint64_t capacity) const;
  void ShareMemory();
  uint32_t SamplesPerTenant() const;

  const SlotClasses& classes_;
  const Clock& clock_;
  const EvictionBatch batch_mode_;
  TenantTable tenants_;
  Charges charges_;
  EvictionOrder order_;
  PerTenant<Record> records_;
  evict::BatchSize batch_;     // of evictions for the budget
  uint64_t memory_slots_ = 0;  // sealed slots whose charges pay for memory
  uint64_t share_ = 0;         // of these, for each tenant
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_ACCOUNTS_H_

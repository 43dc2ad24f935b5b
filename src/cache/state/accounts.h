// Who pays, and at whose expense there is room: tenants, their charges and the order of eviction
// together. Knows no tree and no bytes.
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

/// How far a use of a path was taken in.
struct UseProgress {
  uint64_t counted = 0;  // of the keys that were asked for, from the first on
  uint64_t touched = 0;  // of all keys, from the last on
  std::unique_ptr<evict::Policy::Use> begun{};
};

/// All tenants of a cache, what they pay for and what of it can be evicted. What concerns one of
/// these alone is asked of that object; here is what takes them together: tenants that come and go,
/// how much room one can get at whose expense, and how the memory for what is not there any more is
/// shared.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK)
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: `classes` and the shared ledger must outlive it
class Accounts {
 public:
  /// With a `shared` ledger the bytes are charged to that too, and others may use it up.
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
  /// Takes out a tenant that pays for nothing any more. One of the same name begins with its epoch.
  /// Errors: kBusy it still does
  Result<void> Remove(TenantId tenant);
  /// Whether these could be its limits, whatever it holds. Errors: as Cache::SetLimits
  Result<void> CheckLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) const;
  /// Errors: as Cache::SetLimits
  Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes);
  /// Raises its epoch, and forgets what is known of the requests of its account too.
  void Erase(TenantId tenant);
  /// The counters that are not derived from anything else.
  TenantStats& counters(TenantId tenant) { return records_[tenant].counters; }
  /// What is remembered of blocks of an account that went.
  Ghosts& ghosts(TenantId account) { return records_[account].ghosts; }
  /// With all that is known here filled in.
  TenantStats stats(TenantId tenant) const;

  /// What a budget pays for: the ledger's limit, and what is remembered of blocks that are gone.
  void SetCapacity(const Capacity& capacity);
  /// Blocks that each account may remember.
  uint64_t share() const { return share_; }

  /// Most bytes that could be taken for a tenant now.
  uint64_t CapacityBytes(const Asker& asker) const;
  /// Whether `bytes` more fit when all that may go for them has gone. An empty message: it is the
  /// budget that is full.
  Result<void> CheckCapacity(const Asker& asker, uint64_t bytes) const;
  /// What VictimFor will surely find, one after the other. Nobody's (none): of all blocks.
  uint64_t EvictableFor(TenantId tenant) const;
  /// The least recent over all accounts that it does not bring below their floors; of one's own
  /// account always. Nobody's (none): of all.
  std::optional<Victim> VictimFor(TenantId tenant) const;
  /// How many bytes must be free of the tenant's quota, and of the budget, when `needed` are taken:
  /// these, and what is evicted in advance.
  uint64_t WantedOfQuota(TenantId tenant, uint64_t needed);
  uint64_t WantedOfBudget(uint64_t needed);

  /// A tenant used a path of its account; the blocks that are listed from the end of this until
  /// EvictionOrder::EndUse were used by it. Looks at `keys_left` keys at most, and counts them
  /// down. False: there is more of it, for another hold of the lock; until then nothing is under
  /// way.
  bool BeginUse(TenantId tenant, uint32_t epoch, const PathUse& use, UseProgress& progress,
                uint64_t& keys_left);

 private:
  Result<void> CheckFloor(const std::string& name, uint64_t floor_bytes,
                          uint64_t others_bytes) const;
  /// What is known of a tenant besides.
  struct Record {
    evict::ReuseEstimator reuse;  // of what was asked of the account
    Ghosts ghosts;                // of blocks of the account
    evict::BatchSize batch;       // of what goes for its quota
    TenantStats counters;         // the rest is filled in when asked
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
  evict::BatchSize batch_;     // of what goes for the budget
  uint64_t memory_slots_ = 0;  // sealed slots whose charges pay for memory
  uint64_t share_ = 0;         // of these, for each tenant
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_ACCOUNTS_H_

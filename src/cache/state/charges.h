// Which tenant pays for which bytes: the budget, each tenant's charges, and their written or pinned
// part.
#ifndef QUIRE_CACHE_STATE_CHARGES_H_
#define QUIRE_CACHE_STATE_CHARGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/state/per_tenant.h"
#include "cache/state/slot_classes.h"
#include "cache/state/tenant_table.h"
#include "quire/identity.h"
#include "quota/ledger.h"

namespace quire::cache {

/// The bytes charged to the budget and to each tenant, the tenant that pays for each slot, and how
/// many of the held slots a tenant wrote or its account has pinned. A tenant's own blocks are paid
/// for by its account.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK)
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: `tenants`, `classes` and the shared ledger must outlive it
class Charges {
 public:
  /// Bookkeeping of each slot.
  static constexpr uint64_t kBytesPerSlot = sizeof(TenantId);

  /// With a `shared` ledger the bytes are charged to that too, and other caches may use it up.
  Charges(const TenantTable& tenants, const SlotClasses& classes, uint64_t limit_bytes,
          quota::Ledger* shared);

  /// Tenants come and go with those of the table.
  void Add(TenantId tenant, const TenantOptions& options);
  void Remove(TenantId tenant) { parties_.Remove(tenant); }
  /// Sets the limits of a tenant; no quota: 0. No more may be in use than the quota.
  void SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes);

  const quota::Ledger& ledger() const { return ledger_; }
  void SetLimit(uint64_t bytes) { ledger_.SetLimit(bytes); }
  const quota::Account& account(TenantId tenant) const { return parties_[tenant].account; }
  /// Charges the budget and the tenant, or (false) nothing. The quota must have room.
  [[nodiscard]] bool TryCharge(TenantId tenant, uint64_t bytes);
  void Refund(TenantId tenant, uint64_t bytes);

  /// Takes memory for slots with lower ids than this.
  void ReserveSlots(uint32_t end) {
    if (end > payers_.size()) payers_.resize(end);
  }
  /// Sets the tenant that pays for a slot that was taken; its charge is in TryCharge. Needs
  /// ReserveSlots.
  void SetPayer(SlotId slot, TenantId tenant) { payers_[slot.number()] = tenant; }
  TenantId payer(SlotId slot) const { return payers_[slot.number()]; }
  /// Moves the charge of a slot to another account.
  void MoveSlot(SlotId slot, TenantId to);
  /// Refunds the charge of a slot that is free now.
  void RefundSlot(SlotId slot) { Refund(payer(slot), classes_.charge_bytes(slot)); }

  /// Counts held slots that a tenant wrote, by the epoch it wrote them in.
  void CountWritten(TenantId tenant, uint32_t epoch, int64_t slots);
  /// After an erasure: the slots that the tenant wrote so far belong to older epochs.
  void AgeWritten(TenantId tenant);
  uint64_t stale_slots(TenantId tenant) const { return parties_[tenant].slots_stale; }
  /// Of any epoch.
  uint64_t written_slots(TenantId tenant) const {
    return parties_[tenant].slots_written + parties_[tenant].slots_stale;
  }

  /// An account may pin only what leaves the others their floors.
  uint64_t PinLimit(TenantId account) const;
  void CountPinned(TenantId account, int64_t blocks, int64_t bytes);
  uint64_t pinned_bytes(TenantId account) const { return parties_[account].pinned_bytes; }
  uint64_t pinned_blocks(TenantId account) const { return parties_[account].pinned_blocks; }

 private:
  struct Party {
    quota::Account account;
    uint64_t pinned_bytes = 0;  // bytes of the account that Pin keeps
    uint64_t pinned_blocks = 0;
    uint64_t slots_written = 0;  // held slots that the tenant wrote in its present epoch
    uint64_t slots_stale = 0;    // and in older ones
  };

  const TenantTable& tenants_;
  const SlotClasses& classes_;
  quota::Ledger ledger_;
  PerTenant<Party> parties_;
  std::vector<TenantId> payers_;  // by SlotId, up to the highest used
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_CHARGES_H_

#include "cache/state/charges.h"

#include <algorithm>
#include <utility>

namespace quire::cache {

Charges::Charges(const TenantTable& tenants, const SlotClasses& classes, uint64_t limit_bytes,
                 quota::Ledger* shared)
    : tenants_(tenants),
      classes_(classes),
      ledger_(limit_bytes, shared),
      parties_(std::make_shared<Party>(Party{.account = quota::Account(0, 0)})) {
  Add(kDefaultTenant, {});
}

void Charges::Add(TenantId tenant, const TenantOptions& options) {
  const uint64_t quota_bytes = options.quota_bytes == 0 ? UINT64_MAX : options.quota_bytes;
  parties_.Put(tenant, std::make_shared<Party>(
                           Party{.account = quota::Account(quota_bytes, options.floor_bytes)}));
}

void Charges::SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) {
  parties_[tenant].account.SetLimits(quota_bytes == 0 ? UINT64_MAX : quota_bytes, floor_bytes);
}

bool Charges::TryCharge(TenantId tenant, uint64_t bytes) {
  if (!ledger_.TryCharge(bytes)) return false;
  parties_[tenant].account.Charge(bytes);
  return true;
}

void Charges::Refund(TenantId tenant, uint64_t bytes) {
  parties_[tenant].account.Refund(bytes);
  ledger_.Refund(bytes);
}

void Charges::MoveSlot(SlotId slot, TenantId to) {
  const TenantId from = std::exchange(payers_[slot.number()], to);
  if (from == to) return;
  const uint64_t bytes = classes_.charge_bytes(slot);
  parties_[from].account.Refund(bytes);
  parties_[to].account.Charge(bytes);
}

void Charges::CountWritten(TenantId tenant, uint32_t epoch, int64_t slots) {
  Party& party = parties_[tenant];
  (epoch == tenants_.epoch(tenant) ? party.slots_written : party.slots_stale) += slots;
}

void Charges::AgeWritten(TenantId tenant) {
  Party& party = parties_[tenant];
  party.slots_stale += std::exchange(party.slots_written, 0);
}

uint64_t Charges::PinLimit(TenantId account) const {
  const quota::Account& own = parties_[account].account;
  const uint64_t others_bytes = tenants_.floors_bytes() - own.floor_bytes();
  return std::min(ledger_.limit_bytes() - others_bytes, own.quota_bytes());
}

void Charges::CountPinned(TenantId account, int64_t blocks, int64_t bytes) {
  parties_[account].pinned_blocks += blocks;
  parties_[account].pinned_bytes += bytes;
}

}  // namespace quire::cache

// Tenants and domains: their names, whose keys a block has, and erasing them.
#include <fmt/format.h>

#include <algorithm>

#include "base/canary.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/core.h"
#include "cache/leases.h"
#include "cache/mover.h"
#include "cache/quarantine.h"

namespace quire::cache {

Result<TenantId> Core::AddTenant(const TenantOptions& options) {
  auto added = With([&](State& state) -> Result<TenantId> {
    QUIRE_ASSIGN(const TenantId id, state.accounts.Add(options));
    state.directory.AddAccount(id);
    state.directory.SetGhosts(state.accounts.share());
    return id;
  });
  if (added && mover_ != nullptr) {
    const uint64_t quota = options.store_quota_bytes;
    mover_->SetLimits({.publisher = tier::PublisherOf(options.name),
                       .bytes_quota = quota == 0 ? UINT64_MAX : quota,
                       .bytes_floor = options.store_floor_bytes});
  }
  return added;
}

Result<TenantId> Core::FindTenant(std::string_view name) const {
  MutexLock lock(mutex_);
  return state_->accounts.Find(name);
}

Result<TenantStats> Core::tenant_stats(TenantId id) const {
  TenantStats stats;
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(state_->accounts.Check(id));
    stats = state_->accounts.stats(id);
    stats.published_blocks = state_->directory.block_count(id);
    if (state_->accounts.account_of(id) != id) return stats;  // of a domain: that one has it all
    const TenantOptions& options = state_->accounts.options(id);
    stats.store_quota_bytes = options.store_quota_bytes;
    stats.store_floor_bytes = options.store_floor_bytes;
  }
  if (mover_ == nullptr) return stats;
  const auto below =
      mover_->UsageOf(tier::PublisherOf(id == kDefaultTenant ? std::string() : stats.name));
  stats.store_records = below.records;
  stats.store_bytes = below.bytes_live;
  stats.store_space_bytes = below.bytes;
  return stats;
}

// The default tenant's keys are those of the identity; any other's are a hash of that and who it
// is, so that no name in an identity can lead to another tenant's blocks.
Result<PublishLocation> Core::MakeLocation(const AcquireRequest& request) const {
  const Identity& identity = *request.identity;
  PublishLocation location{.root_key = RootKey(identity, options_.geometry, options_.profile),
                           .domain = std::make_shared<const Domain>(identity.domain),
                           .tenant = request.tenant};
  // Who pays, and whether its keys are other ones than the identity's.
  std::string name;
  uint64_t epoch = 0;
  bool is_domain = false;
  {
    MutexLock lock(mutex_);
    const Accounts& accounts = state_->accounts;
    QUIRE_TRY(accounts.Check(request.tenant));
    const TenantOptions& options = accounts.options(request.tenant);
    if (options.shared) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("acquire: \"{}\" is a domain, which asks for nothing itself", options.name));
    }
    location.epoch = accounts.epoch(request.tenant);
    const TenantId account = accounts.account_of(request.tenant);
    epoch = accounts.epoch(account);
    is_domain = account != request.tenant;
    if (account != kDefaultTenant) name = accounts.options(account).name;
  }
  if (mover_ != nullptr) {
    location.below_epoch = mover_->EpochOf(tier::PublisherOf(name));
    // What a tenant erased through another cache, or in another life of the store, stays erased;
    // its domain's keys have no epoch.
    if (!is_domain) epoch = location.below_epoch;
  }
  if (name.empty() && epoch == 0) return location;
  Blake2b<32> hasher(identity.domain.secret);
  hasher.Update("quire tenant");
  hasher.UpdateNumber(name.size());
  hasher.Update(name);
  hasher.UpdateNumber(static_cast<uint32_t>(epoch));
  hasher.Update(std::as_bytes(std::span(location.root_key)));
  location.root_key = hasher.Finish();
  return location;
}

// From the first hold on nothing of it is handed out any more: lookups compare epochs. What follows
// takes its blocks out, piece by piece.
Result<EraseReport> Core::Erase(TenantId id) {
  EraseReport report;
  auto begun = With([&](State& state) -> Result<void> {
    QUIRE_TRY(state.accounts.Check(id));
    const TenantOptions& options = state.accounts.options(id);
    if (options.shared) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("erase: \"{}\" is a domain; erase its tenants", options.name));
    }
    state.accounts.Erase(id);
    state.directory.ghosts(id).Clear();
    report.slots_zeroed = state.accounts.stale_slots(id);  // less what is left at the end
    return {};
  });
  QUIRE_TRY(std::move(begun));
  // From here on nothing of it is found or written; below it goes for good.
  Result<void> erased_below;
  if (mover_ != nullptr) {
    if (!Planted(Canary::kEraseAbove)) {
      erased_below = mover_->Erase(tier::PublisherOf(PublisherName(id)));
    }
    report.slots_zeroed += DisownLoaded(id);
  }
  report.blocks = MarkErased();
  if (mover_ != nullptr) WriteAgain(id);
  const uint64_t free_zeroed = ZeroFreeSlots(id);
  report.slots_pending = With([&](State& state) { return state.accounts.stale_slots(id); });
  report.slots_zeroed += free_zeroed - std::min(report.slots_zeroed, report.slots_pending);
  QUIRE_TRY(std::move(erased_below));
  return report;
}

// Takes what was erased out of use, and with it what continues it. Returns how many blocks.
uint64_t Core::MarkErased() {
  uint64_t marked = 0;
  const uint32_t end = With([](State& state) { return state.directory.ids_end(); });
  uint32_t next = 0;
  const auto mark_some = [&](State& state) {
    const uint32_t last = std::min(end, next + kBlocksPerHold);
    for (; next < last && state.directory.MayGoOn(); ++next) {
      const BlockId block(next);
      if (!state.directory.contains(block)) continue;
      state.directory.CountTouched(1);
      if (state.directory.at(block).block_state == BlockState::kErased) continue;
      if (BlockStateOf(state, block) != BlockState::kErased) continue;
      Quarantine(state, block, BlockState::kErased, &marked);
    }
    return next < end;
  };
  while (With(mark_some)) AtSyncPoint("erase: before more is marked");
  return marked;
}

Result<void> Core::RemoveTenant(TenantId id) {
  const auto check = [&](State& state) -> Result<void> {
    QUIRE_TRY(state.accounts.Check(id));
    return state.accounts.CheckRemovable(id);
  };
  QUIRE_TRY(With(check));
  const auto [name, is_domain] = With([&](State& state) {
    const TenantOptions& options = state.accounts.options(id);
    return std::pair(options.name, options.shared);
  });
  // A domain without members has nothing that was not erased with them.
  if (!is_domain) {
    if (auto erased = Erase(id); !erased) return std::unexpected(std::move(erased).error());
  }
  auto removed = With([&](State& state) -> Result<void> {
    QUIRE_TRY(check(state));  // somebody may have been quicker
    QUIRE_TRY(state.accounts.Remove(id));
    state.directory.ForgetAccount(id);
    state.directory.SetGhosts(state.accounts.share());
    return {};
  });
  if (removed && mover_ != nullptr) mover_->SetLimits({.publisher = tier::PublisherOf(name)});
  return removed;
}

// Slots that were given back with their bytes in them, and not handed out since.
uint64_t Core::ZeroFreeSlots(TenantId tenant) {
  constexpr uint32_t kSlotsPerHold = 64;
  uint64_t zeroed = 0;
  for (uint32_t begin = 0;; begin += kSlotsPerHold) {
    std::vector<SlotId> stale;
    const bool more = With([&](State& state) {
      const uint32_t end = std::min(begin + kSlotsPerHold, state.slots.writers_end());
      for (uint32_t i = begin; i < end; ++i) {
        const Slots::Writer writer = state.slots.writer(SlotId(i));
        if (writer.tenant != tenant || writer.epoch == state.accounts.epoch(tenant)) continue;
        if (state.slots.references(SlotId(i)) == 0) stale.emplace_back(i);
      }
      return end > begin;
    });
    if (!more) return zeroed;
    // Who takes one meanwhile zeroes it, and is its writer from then on.
    std::erase_if(stale, [&](SlotId slot) { return !slots_->ZeroIfFree(slot); });
    slots_->ops().Synchronize();
    With([&](State& state) {
      for (const SlotId slot : stale) {
        if (state.slots.writer(slot).tenant != tenant || state.slots.references(slot) > 0) continue;
        state.slots.ForgetWriter(slot);
        ++zeroed;
      }
    });
  }
}

}  // namespace quire::cache

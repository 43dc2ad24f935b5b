// Tenants and domains: their names, whose keys a block has, and erasing them.
#include <fmt/format.h>

#include <algorithm>

#include "base/canary.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/core.h"
#include "cache/evict.h"
#include "cache/leases.h"
#include "cache/mover.h"
#include "cache/pin_verbs.h"

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
  const std::vector<BlockId> erased = MarkErased();
  if (mover_ != nullptr) WriteAgain(id);
  report.blocks = erased.size();
  With([&](State& state) { EndPinsOfBadBlocks(state); });
  // Children first. What is leased goes with its last lease.
  for (size_t i = erased.size(); i > 0; --i) {
    AtSyncPoint("erase: before a block goes");
    With([&](State& state) {
      const BlockId block = erased[i - 1];
      if (!state.directory.contains(block) || state.directory.has_children(block)) return;
      const BlockRecord& record = state.directory.at(block);
      if (record.block_state == BlockState::kErased && record.leases == 0) {
        Drop(state, block, MissReason::kNeverSeen);
      }
    });
  }
  const uint64_t free_zeroed = ZeroFreeSlots(id);
  report.slots_pending = With([&](State& state) { return state.accounts.stale_slots(id); });
  report.slots_zeroed += free_zeroed - std::min(report.slots_zeroed, report.slots_pending);
  QUIRE_TRY(std::move(erased_below));
  return report;
}

// Marks what was erased, and with it what continues it: parents before children.
std::vector<BlockId> Core::MarkErased() {
  std::vector<BlockId> found;
  const uint32_t end = With([](State& state) { return state.directory.ids_end(); });
  ForPieces(end, [&](size_t first, size_t last) {
    With([&](State& state) {
      for (size_t i = first; i < last; ++i) {
        const BlockId block(static_cast<uint32_t>(i));
        if (!state.directory.contains(block)) continue;
        if (state.directory.at(block).block_state == BlockState::kErased) continue;
        if (BlockStateOf(state, block) == BlockState::kErased) found.push_back(block);
      }
    });
  });
  std::vector<BlockId> erased;
  std::vector<BlockId> subtree;
  for (const BlockId root : found) {
    subtree.clear();
    With([&](State& state) {
      if (!state.directory.contains(root)) return;
      if (state.directory.at(root).block_state == BlockState::kErased)
        return;  // with one before it
      state.directory.AppendSubtree(root, subtree);
    });
    ForPieces(subtree.size(), [&](size_t first, size_t last) {
      With([&](State& state) {
        for (size_t i = first; i < last; ++i) {
          const BlockId block = subtree[i];
          if (!state.directory.contains(block)) continue;  // it went meanwhile
          const BlockId parent = state.directory.parent(block);
          const bool continues =
              !parent.is_none() && state.directory.at(parent).block_state == BlockState::kErased;
          if (!continues && BlockStateOf(state, block) != BlockState::kErased) continue;
          if (state.directory.MarkErased(block)) erased.push_back(block);
        }
      });
    });
  }
  return erased;
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

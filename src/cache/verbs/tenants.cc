#include "cache/verbs/tenants.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/canary.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/below/store_state.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/quarantine.h"

namespace quire::cache {
namespace {

Result<void> CheckRequest(const CacheOptions& options, const AcquireRequest& request,
                          std::string_view what) {
  if (request.identity == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: no identity", what));
  }
  const uint64_t tokens = request.tokens.size();
  if (tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: the prompt has no tokens", what));
  }
  if (tokens <= options.tokens_max) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: a prompt of {} tokens is over the limit of {} (tokens_max)", what,
                          tokens, options.tokens_max));
}

}  // namespace

tier::PublisherId PublisherOf(const LockedState& cache, TenantId tenant) {
  return tier::PublisherOf(cache.Look([&](const State& state) {
    const TenantId account = state.accounts.tenants().account_of(tenant);
    return account == kDefaultTenant ? std::string()
                                     : state.accounts.tenants().options(account).name;
  }));
}

Result<TenantId> Tenants::Add(const TenantOptions& options) {
  auto added = cache_.With([&](State& state) { return state.accounts.Add(options); });
  if (added && cache_.transfers() != nullptr) {
    const uint64_t quota = options.store_quota_bytes;
    cache_.transfers()->SetLimits({.publisher = tier::PublisherOf(options.name),
                                   .bytes_quota = quota == 0 ? UINT64_MAX : quota,
                                   .bytes_floor = options.store_floor_bytes});
  }
  return added;
}

Result<void> Tenants::SetLimits(TenantId id, uint64_t quota_bytes, uint64_t floor_bytes) {
  while (true) {
    const Result<bool> decided = cache_.With([&](State& state) -> Result<bool> {
      QUIRE_TRY(state.accounts.CheckLimits(id, quota_bytes, floor_bytes));
      if (LetTimePass(state)) return false;
      if (quota_bytes != 0 && !EvictAccountDownTo(state, id, quota_bytes)) return false;
      QUIRE_TRY(state.accounts.SetLimits(id, quota_bytes, floor_bytes));
      return true;
    });
    if (!decided) return std::unexpected(decided.error());
    if (*decided) return {};
    MutexLock until_read(cache_.reading_mutex());
  }
}

Result<TenantId> Tenants::Find(std::string_view name) const {
  return cache_.Look([&](const State& state) { return state.accounts.tenants().Find(name); });
}

Result<TenantStats> Tenants::stats(TenantId id) const {
  bool is_account = false;
  auto known = cache_.Look([&](const State& state) -> Result<TenantStats> {
    QUIRE_TRY(state.accounts.tenants().Check(id));
    TenantStats stats = state.accounts.stats(id);
    stats.published_blocks = state.directory.block_count(id);
    is_account = state.accounts.tenants().account_of(id) == id;
    if (!is_account) return stats;  // a member's statistics are those of its domain
    const TenantOptions& options = state.accounts.tenants().options(id);
    stats.store_quota_bytes = options.store_quota_bytes;
    stats.store_floor_bytes = options.store_floor_bytes;
    return stats;
  });
  if (!known || !is_account || cache_.transfers() == nullptr) return known;
  TenantStats& stats = *known;
  const auto below = cache_.transfers()->UsageOf(
      tier::PublisherOf(id == kDefaultTenant ? std::string() : stats.name));
  stats.store_records = below.records;
  stats.store_bytes = below.bytes_live;
  stats.store_space_bytes = below.bytes;
  return known;
}

// The default tenant's keys are those of the identity; any other's are a hash of that and the
// tenant's name and epoch, so that no name in an identity can lead to another tenant's blocks.
Result<PublishLocation> Locate(const LockedState& cache, const AcquireRequest& request,
                               std::string_view what) {
  QUIRE_TRY(CheckRequest(cache.options(), request, what));
  const Identity& identity = *request.identity;
  const CacheOptions& options = cache.options();
  PublishLocation location{.root_key = RootKey(identity, options.geometry, options.profile),
                           .domain = std::make_shared<const Domain>(identity.domain),
                           .tenant = request.tenant};
  // The account that pays, and whether its keys differ from the identity's.
  std::string name;
  uint64_t epoch = 0;
  bool is_domain = false;
  auto known = cache.Look([&](const State& state) -> Result<void> {
    const Accounts& accounts = state.accounts;
    QUIRE_TRY(accounts.tenants().Check(request.tenant));
    const TenantOptions& tenant = accounts.tenants().options(request.tenant);
    if (tenant.shared) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("acquire: \"{}\" is a domain, which asks for nothing itself", tenant.name));
    }
    location.epoch = accounts.tenants().epoch(request.tenant);
    const TenantId account = accounts.tenants().account_of(request.tenant);
    // Followers are not told of the blocks of named tenants and domains, nor of those of adapters,
    // which tokens alone do not find: the adapter's version is part of their keys.
    location.announced = account == kDefaultTenant && identity.adapter.empty();
    epoch = accounts.tenants().epoch(account);
    is_domain = account != request.tenant;
    if (account != kDefaultTenant) name = accounts.tenants().options(account).name;
    return {};
  });
  QUIRE_TRY(std::move(known));
  if (cache.transfers() != nullptr) {
    location.below_epoch = cache.transfers()->EpochOf(tier::PublisherOf(name));
    // Blocks that a tenant erased through another cache, or before the store was reopened, stay
    // erased; its domain's keys have no epoch.
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

// From the first hold on none of its blocks is handed out: lookups compare epochs. The rest of this
// removes its blocks, piece by piece.
Result<EraseReport> Tenants::Erase(TenantId id) {
  EraseReport report;
  auto begun = cache_.With([&](State& state) -> Result<void> {
    QUIRE_TRY(state.accounts.tenants().Check(id));
    const TenantOptions& options = state.accounts.tenants().options(id);
    if (options.shared) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("erase: \"{}\" is a domain; erase its tenants", options.name));
    }
    state.accounts.Erase(id);
    state.accounts.ghosts(id).Clear();
    report.slots_zeroed = state.accounts.charges().stale_slots(id);  // less those that are left at
                                                                     // the end
    return {};
  });
  QUIRE_TRY(std::move(begun));
  // From here on none of its blocks is found or written; the store erases its records.
  Result<void> erased_below;
  if (cache_.transfers() != nullptr) {
    if (!Planted(Canary::kEraseAbove)) {
      erased_below = cache_.store()->Erase(PublisherOf(cache_, id));
    }
  }
  report.slots_zeroed += Disown(id);
  report.blocks = MarkErased();
  if (cache_.transfers() != nullptr) WriteAgain(id);
  const uint64_t free_zeroed = Planted(Canary::kKeepFree) ? 0 : ZeroFreeSlots(id);
  report.slots_pending =
      cache_.With([&](State& state) { return state.accounts.charges().stale_slots(id); });
  report.slots_zeroed += free_zeroed - std::min(report.slots_zeroed, report.slots_pending);
  QUIRE_TRY(std::move(erased_below));
  return report;
}

// A record names its account, not the member of the domain that wrote it: when a member is erased,
// loaded blocks count as written by that member. So do the slots that another member wrote into an
// erased block, which have the same bytes. Returns the number of such slots.
uint64_t Tenants::Disown(TenantId erased) {
  uint64_t slots = 0;
  const uint32_t end = cache_.With([](State& state) { return state.directory.ids_end(); });
  LockedState::ForPieces(end, [&](size_t first, size_t last) {
    cache_.With([&](State& state) {
      const SlotWriters::Writer gone = {.tenant = erased,
                                        .epoch = state.accounts.tenants().epoch(erased) - 1};
      for (size_t i = first; i < last; ++i) {
        const BlockId block(static_cast<uint32_t>(i));
        if (!state.directory.contains(block)) continue;
        const BlockRecord& record = state.directory.at(block);
        if (record.account != state.accounts.tenants().account_of(erased)) continue;
        if (record.loaded) {  // it may have no slot now
          state.directory.SetPublisher(block, gone.tenant, gone.epoch);
        } else if (BlockStateOf(state, block) != BlockState::kErased) {
          continue;
        }
        for (const SlotId slot : record.slots) {
          if (slot.is_none()) continue;
          const SlotWriters::Writer writer = state.slots.writers().of(slot);
          if (state.IsStale(writer.tenant, writer.epoch)) continue;
          state.accounts.charges().CountWritten(writer.tenant, writer.epoch, -1);
          state.slots.writers().Claim(slot, gone);
          state.accounts.charges().CountWritten(gone.tenant, gone.epoch, +1);
          ++slots;
        }
      }
    });
  });
  return slots;
}

// In the store all records of the domain went, whichever member wrote them. Blocks of other members
// that are left in memory are written again when they are used again.
void Tenants::WriteAgain(TenantId erased) {
  const uint64_t epoch = cache_.transfers()->EpochOf(PublisherOf(cache_, erased));
  const uint32_t end = cache_.With([](State& state) { return state.directory.ids_end(); });
  LockedState::ForPieces(end, [&](size_t first, size_t last) {
    cache_.With([&](State& state) {
      WriteBehind& writes = state.directory.write_behind();
      for (size_t i = first; i < last; ++i) {
        const BlockId block(static_cast<uint32_t>(i));
        if (!state.directory.contains(block)) continue;
        const BlockRecord& record = state.directory.at(block);
        if (record.account != state.accounts.tenants().account_of(erased)) continue;
        if (BlockStateOf(state, block) != BlockState::kGood) continue;
        state.directory.SetBelowEpoch(block, epoch);
        for (const bool twins : {false, true}) {
          if (writes.below(block, twins) != Below::kDurable) continue;
          state.directory.SetBelow(block, twins, Below::kNothing);
        }
      }
    });
  });
}

// Takes erased blocks out of use, with their descendants. Returns how many blocks.
uint64_t Tenants::MarkErased() {
  uint64_t marked = 0;
  const uint32_t end = cache_.With([](State& state) { return state.directory.ids_end(); });
  uint32_t next = 0;
  const auto mark_some = [&](State& state) {
    const uint32_t last = std::min(end, next + kBlocksPerHold);
    for (; next < last && state.directory.touched().MayGoOn(); ++next) {
      const BlockId block(next);
      if (!state.directory.contains(block)) continue;
      state.directory.touched().Count(1);
      if (state.directory.at(block).block_state == BlockState::kErased) continue;
      if (BlockStateOf(state, block) != BlockState::kErased) continue;
      Quarantine(state, block, BlockState::kErased, &marked);
    }
    return next < end;
  };
  while (cache_.With(mark_some)) AtSyncPoint("erase: before more is marked");
  return marked;
}

Result<void> Tenants::Remove(TenantId id) {
  const auto check = [&](State& state) -> Result<void> {
    QUIRE_TRY(state.accounts.tenants().Check(id));
    return state.accounts.tenants().CheckRemovable(id);
  };
  QUIRE_TRY(cache_.With(check));
  const auto [name, is_domain] = cache_.With([&](State& state) {
    const TenantOptions& options = state.accounts.tenants().options(id);
    return std::pair(options.name, options.shared);
  });
  // A domain without members has no blocks: they were erased with the members.
  if (!is_domain) {
    if (auto erased = Erase(id); !erased) return std::unexpected(std::move(erased).error());
  }
  auto removed = cache_.With([&](State& state) -> Result<void> {
    QUIRE_TRY(check(state));  // another call may have removed it first
    QUIRE_TRY(state.accounts.Remove(id));
    QUIRE_CHECK(state.directory.block_count(id) == 0);
    return {};
  });
  if (removed && cache_.transfers() != nullptr)
    cache_.transfers()->SetLimits({.publisher = tier::PublisherOf(name)});
  return removed;
}

// Zeroes slots that were freed with their bytes and not handed out since. For a domain those of all
// members: a slot that one of them loaded may have bytes of the erased member.
uint64_t Tenants::ZeroFreeSlots(TenantId tenant) {
  constexpr uint32_t kSlotsPerHold = 64;
  uint64_t zeroed = 0;
  for (uint32_t begin = 0;; begin += kSlotsPerHold) {
    std::vector<SlotId> stale;
    const bool more = cache_.With([&](State& state) {
      const uint32_t end = std::min(begin + kSlotsPerHold, state.slots.writers().end());
      for (uint32_t i = begin; i < end; ++i) {
        const SlotWriters::Writer writer = state.slots.writers().of(SlotId(i));
        const TenantTable& tenants = state.accounts.tenants();
        const TenantId account = tenants.account_of(tenant);
        const bool own = writer.tenant == tenant && writer.epoch != tenants.epoch(tenant);
        const bool shared = account != tenant && !writer.tenant.is_none() &&
                            tenants.account_of(writer.tenant) == account;
        if (!own && !shared) continue;
        if (state.slots.references(SlotId(i)) == 0) stale.emplace_back(i);
      }
      return end > begin;
    });
    if (!more) return zeroed;
    AtSyncPoint("erase: before free slots are zeroed");
    // A call that takes such a slot meanwhile zeroes it, and is its writer from then on.
    std::erase_if(stale, [&](SlotId slot) { return !cache_.slots().ZeroIfFree(slot); });
    static_cast<void>(cache_.slots().ops().Synchronize());  // no operation reads bytes of a device
                                                            // that failed
    AtSyncPoint("erase: free slots were zeroed");
    cache_.With([&](State& state) {
      for (const SlotId slot : stale) {
        const SlotWriters::Writer writer = state.slots.writers().of(slot);
        if (writer.tenant != tenant || !state.IsStale(tenant, writer.epoch)) continue;
        if (state.slots.references(slot) > 0) continue;
        state.slots.writers().Forget(slot);
        ++zeroed;
      }
    });
  }
}

}  // namespace quire::cache

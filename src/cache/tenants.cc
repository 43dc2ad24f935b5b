// Tenants and domains: their names, their accounts, whose bytes a slot holds, and erasing them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/bits.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/core.h"
#include "evict/policies.h"

namespace quire::cache {

namespace {

/// Most that a tenant takes which remembers nothing: its record, lists, statistics, empty tables.
constexpr uint64_t kTenantBytes = 3072;
/// Slots whose share of memory each tenant has, where there are as many.
constexpr uint64_t kShareLeast = 8;

std::unexpected<Error> Refuse(const TenantOptions& options, std::string_view what) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("tenant \"{}\": {}", options.name, what));
}

}  // namespace

Result<TenantId> Core::AddTenant(const TenantOptions& options) {
  if (options.name.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "tenant: the name is empty");
  }
  if (options.shared && !options.domain.empty()) return Refuse(options, "a domain names a domain");
  const uint64_t quota_bytes = options.quota_bytes == 0 ? UINT64_MAX : options.quota_bytes;
  if (options.floor_bytes > quota_bytes) {
    return Refuse(options, fmt::format("a floor of {} bytes is above its quota of {}",
                                       options.floor_bytes, quota_bytes));
  }
  MutexLock lock(mutex_);
  const TenantId id(static_cast<uint32_t>(tenants_.size()));
  TenantId account = id;
  uint64_t floors_bytes = 0;
  for (uint32_t i = 0; i < tenants_.size(); ++i) {
    const TenantOptions& other = tenants_[i]->options;
    if (other.name == options.name) return Refuse(options, "the name is taken");
    if (other.shared && other.name == options.domain) account = TenantId(i);
    floors_bytes += other.floor_bytes;
  }
  if (!options.domain.empty() && account == id) {
    return Fail(ErrorCode::kNotFound, fmt::format("tenant \"{}\": there is no domain \"{}\"",
                                                  options.name, options.domain));
  }
  const uint64_t limit_bytes = ledger_.limit_bytes();
  if (options.floor_bytes > limit_bytes - floors_bytes) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("tenant \"{}\": a floor of {} bytes does not fit: the budget is {}, of "
                            "which other floors take {}",
                            options.name, options.floor_bytes, limit_bytes, floors_bytes));
  }
  tenants_.push_back(
      std::make_unique<Tenant>(options, account, quota_bytes, tenants_[0]->lists.MakeSiblings()));
  ShareMemory();
  return id;
}

Result<TenantId> Core::FindTenant(std::string_view name) const {
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < tenants_.size(); ++i) {
    if (tenants_[i]->options.name == name) return TenantId(i);
  }
  return Fail(ErrorCode::kNotFound, fmt::format("there is no tenant \"{}\"", name));
}

Result<void> Core::CheckTenant(TenantId tenant) const {
  if (tenant.number() < tenants_.size()) return {};
  return Fail(ErrorCode::kNotFound, fmt::format("there is no tenant {}", tenant.number()));
}

Result<TenantStats> Core::tenant_stats(TenantId id) const {
  MutexLock lock(mutex_);
  QUIRE_TRY(CheckTenant(id));
  const Tenant& tenant = TenantOf(id);
  TenantStats stats = tenant.stats;
  stats.bytes_used = tenant.account.used_bytes();
  stats.bytes_peak = tenant.account.peak_bytes();
  stats.evictable_bytes = tenant.evictable_bytes;
  stats.published_blocks = tenant.block_count;
  stats.erase_pending_slots = tenant.slots_stale;
  stats.pinned_blocks = tenant.pinned_blocks;
  stats.pinned_bytes = tenant.pinned_bytes;
  if (tenant.account_id != id) return stats;
  uint64_t block_bytes = 0;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) block_bytes += charges_[part];
  const uint64_t blocks =
      std::min(tenant.account.quota_bytes(), ledger_.limit_bytes()) / block_bytes;
  stats.reuse_lookup_blocks = tenant.reuse.uses();
  for (LruEstimate& estimate : stats.lru_estimates) {
    estimate.blocks = static_cast<uint64_t>(estimate.size * static_cast<double>(blocks));
    estimate.hit_ratio = tenant.reuse.HitRatio(estimate.blocks);
  }
  return stats;
}

// What the charge of a sealed slot pays for what is remembered of blocks that are not there.
uint64_t Core::MemoryPerSlot() const {
  return Ghosts::kBytesEach + evict::ReuseEstimator::kBytesEach + history_bytes_;
}

// Each one has the same share, whatever others do, of what is left when their own bookkeeping is
// paid; a little of it in any case.
void Core::ShareMemory() {
  const uint64_t bytes = ghosts_max_ * MemoryPerSlot();
  const uint64_t tenants_bytes = (tenants_.size() - 1) * kTenantBytes;
  share_ = std::max((bytes - std::min(bytes, tenants_bytes)) / MemoryPerSlot() / tenants_.size(),
                    std::min(ghosts_max_ / tenants_.size(), kShareLeast));
  for (const auto& tenant : tenants_) {
    tenant->ghosts.SetCapacity(share_);
    tenant->reuse.SetCapacity(SamplesPerTenant());
    tenant->lists.whole->SetHistory(share_ * history_bytes_);
  }
}

uint32_t Core::SamplesPerTenant() const {
  return static_cast<uint32_t>(std::clamp<uint64_t>(share_, 1, evict::ReuseEstimator::kSamplesMax));
}

// The default tenant's keys are those of the identity; any other's are a hash of that and who it
// is, so that no name in an identity can lead to another tenant's blocks.
Result<Place> Core::MakePlace(const AcquireRequest& request) const {
  const Identity& identity = *request.identity;
  Place place{.root_key = RootKey(identity, options_.geometry, options_.profile),
              .domain = std::make_shared<const Domain>(identity.domain),
              .tenant = request.tenant};
  // Who pays, and whether its keys are other ones than the identity's.
  struct Named {
    std::string name;
    uint32_t epoch = 0;
    bool own_keys = false;
  };
  const auto find_account = [&]() QUIRE_REQUIRES(mutex_) -> Result<Named> {
    QUIRE_TRY(CheckTenant(request.tenant));
    const Tenant& tenant = TenantOf(request.tenant);
    if (tenant.options.shared) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("acquire: \"{}\" is a domain, which asks for nothing itself",
                              tenant.options.name));
    }
    place.epoch = tenant.epoch;
    const Tenant& pays = TenantOf(tenant.account_id);
    return Named{.name = pays.options.name,
                 .epoch = pays.epoch,
                 .own_keys = tenant.account_id != kDefaultTenant || pays.epoch != 0};
  };
  QUIRE_ASSIGN(const Named account, mutex_.Run(find_account));
  if (!account.own_keys) return place;
  Blake2b<32> hasher(identity.domain.secret);
  hasher.Update("quire tenant");
  hasher.UpdateNumber(account.name.size());
  hasher.Update(account.name);
  hasher.UpdateNumber(account.epoch);
  hasher.Update(std::as_bytes(std::span(place.root_key)));
  place.root_key = hasher.Finish();
  return place;
}

// Entries for slots just taken. If memory runs out for them, the slots and their charge go back.
void Core::AddOwners(const PerClass<std::vector<SlotId>>& slots, uint64_t bytes) {
  size_t end = owners_.size();
  for (const std::vector<SlotId>& of_class : slots) {
    for (const SlotId slot : of_class) end = std::max<size_t>(end, slot.number() + size_t{1});
  }
  try {
    owners_.resize(end);
  } catch (const std::bad_alloc&) {
    for (const std::vector<SlotId>& of_class : slots) {
      for (const SlotId slot : of_class) PoolOf(slot).Release(Local(slot));
    }
    ledger_.Refund(bytes);
    throw;
  }
}

// Slots that were just taken are charged and belong to the place's tenant. Those with another's
// bytes are to be zeroed before they are handed out. Needs AddOwners, and room in `to_zero`.
void Core::Claim(const Place& place, std::span<const SlotId> slots, std::vector<SlotId>& to_zero) {
  Tenant& tenant = TenantOf(place.tenant);
  for (const SlotId slot : slots) {
    SlotOwner& owner = owners_[slot.number()];
    const bool own = owner.writer == place.tenant && owner.epoch == place.epoch;
    if (!own && !owner.writer.is_none()) to_zero.push_back(slot);
    owner = {.charged = place.tenant, .writer = place.tenant, .epoch = place.epoch};
    tenant.account.Charge(charges_[ClassOf(slot)]);
    ++(place.epoch == tenant.epoch ? tenant.slots_written : tenant.slots_stale);
  }
}

void Core::Zero(SlotId slot) const {
  const pool::Pool& pool = PoolOf(slot);
  for (uint32_t piece = 0; piece < pool.pieces(); ++piece) {
    std::memset(data(slot) + piece * pool.piece_stride_bytes(), 0,
                pool.slot_bytes() / pool.pieces());
  }
}

void Core::FreeIfLast(SlotId slot) {
  SlotOwner& owner = owners_[slot.number()];
  Tenant& writer = TenantOf(owner.writer);
  const bool stale = owner.epoch != writer.epoch;
  // References change under this lock only, so it is the last one until the release below.
  const bool last = references(slot) == 1;
  if (last && stale) Zero(slot);
  if (!PoolOf(slot).Release(Local(slot))) return;
  --(stale ? writer.slots_stale : writer.slots_written);
  ledger_.Refund(charges_[ClassOf(slot)]);
  if (!owner.charged.is_none()) TenantOf(owner.charged).account.Refund(charges_[ClassOf(slot)]);
  if (stale) owner.writer = TenantId::None();
}

void Core::MoveCharge(SlotId slot, Tenant& to) {
  const uint64_t bytes = charges_[ClassOf(slot)];
  SlotOwner& owner = owners_[slot.number()];
  Tenant& from = TenantOf(owner.charged);
  if (&from == &to) return;
  from.account.Refund(bytes);
  to.account.Charge(bytes);
  owner.charged = to.account_id;
}

// Whether the account of a place has room for slots of its tenant, at the expense of its own old
// blocks.
bool Core::MakeRoomInAccount(const Place& place, uint64_t bytes, Leaving& leaving) {
  Tenant& account = AccountOf(place);
  if (&account == &TenantOf(place.tenant)) return true;  // it has paid for its slots already
  if (bytes > account.account.room_bytes() + account.evictable_bytes) return false;
  while (account.account.room_bytes() < bytes) {
    EvictVictim(*VictimOf(account), MissReason::kQuota, place.spill ? &leaving : nullptr);
  }
  return true;
}

Result<EraseReport> Core::Erase(TenantId id) {
  EraseReport report;
  std::vector<BlockId> erased;
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckTenant(id));
    Tenant& tenant = TenantOf(id);
    if (tenant.options.shared) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("erase: \"{}\" is a domain; erase its tenants", tenant.options.name));
    }
    ++tenant.epoch;
    ++tenant.stats.erased_total;
    tenant.slots_stale += std::exchange(tenant.slots_written, 0);
    tenant.ghosts.Clear();
    const std::vector<SlotOwner>* const owners = &owners_;  // used while the lock is held
    const auto wrote = [&](SlotId slot) {
      return !slot.is_none() && (*owners)[slot.number()].writer == id;
    };
    blocks_.ForEach([&](BlockId block, const BlockRecord& record) {
      if (record.publisher == id || std::ranges::any_of(record.slots, wrote)) {
        erased.push_back(block);
      }
    });
    erased = Mark(erased, Standing::kErased);
    EndPinsOfBadBlocks();
    // What is known of its requests is a part of what it published.
    Tenant& account = TenantOf(tenant.account_id);
    ++account.erasures;
    account.reuse = evict::ReuseEstimator(SamplesPerTenant());
    report.blocks = erased.size();
    report.slots_zeroed = tenant.slots_stale;  // less what is left at the end
  }
  // From the leaves, each with those before it. What is leased goes with its last lease.
  for (const BlockId block : erased) {
    AtSyncPoint("erase: before a block goes");
    MutexLock lock(mutex_);
    if (!blocks_.contains(block) || index_.has_children(block)) continue;
    const BlockRecord& record = blocks_.at(block);
    if (record.standing == Standing::kErased && record.leases == 0) {
      Drop(block, MissReason::kNeverSeen);
    }
  }
  const uint64_t free_zeroed = ZeroFreeSlots(id);
  MutexLock lock(mutex_);
  report.slots_pending = TenantOf(id).slots_stale;
  report.slots_zeroed += free_zeroed - std::min(report.slots_zeroed, report.slots_pending);
  return report;
}

// Slots that were given back with their bytes in them, and not handed out since.
uint64_t Core::ZeroFreeSlots(TenantId tenant) {
  constexpr uint32_t kSlotsPerHold = 64;
  uint64_t zeroed = 0;
  for (uint64_t begin = 0;; begin += kSlotsPerHold) {
    MutexLock lock(mutex_);
    if (begin >= owners_.size()) return zeroed;
    const uint64_t end = std::min<uint64_t>(begin + kSlotsPerHold, owners_.size());
    for (uint64_t i = begin; i < end; ++i) {
      const SlotId slot(static_cast<uint32_t>(i));
      SlotOwner& owner = owners_[i];
      if (owner.writer != tenant || owner.epoch == TenantOf(tenant).epoch) continue;
      if (references(slot) > 0) continue;
      Zero(slot);
      owner.writer = TenantId::None();
      ++zeroed;
    }
  }
}

}  // namespace quire::cache

#include "cache/accounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/hit_length.h"

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

Accounts::Tenant::Tenant(TenantOptions made_with, TenantId published_to, uint64_t quota_bytes,
                         EvictionLists eviction_lists)
    : options(std::move(made_with)),
      account_id(published_to),
      account(quota_bytes, options.floor_bytes),
      lists(std::move(eviction_lists)) {
  stats.name = options.name;
  stats.quota_bytes = options.quota_bytes;
  stats.floor_bytes = options.floor_bytes;
}

Accounts::Accounts(const SlotClasses& classes, const Clock& clock, std::string_view policy,
                   EvictionBatch batch, const Capacity& capacity, quota::Ledger* shared)
    : classes_(classes),
      clock_(clock),
      batch_mode_(batch),
      heeds_priorities_(evict::MakePolicy(policy)->heeds_priorities()),
      hears_time_(evict::MakePolicy(policy)->hears_time()),
      ledger_(capacity.ledger_bytes, shared) {
  tenants_.push_back(std::make_shared<Tenant>(TenantOptions{.name = "default"}, kDefaultTenant,
                                              /*quota_bytes=*/UINT64_MAX, EvictionLists(policy)));
  gone_ = std::make_shared<Tenant>(TenantOptions{.name = "(removed)"}, kDefaultTenant,
                                   /*quota_bytes=*/0, tenants_[0]->lists.MakeSiblings());
  gone_->epoch = UINT32_MAX;
  live_ = 1;
  SetCapacity(capacity);
}

Result<TenantId> Accounts::Add(const TenantOptions& options) {
  if (options.name.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "tenant: the name is empty");
  }
  if (options.shared && !options.domain.empty()) return Refuse(options, "a domain names a domain");
  const uint64_t quota_bytes = options.quota_bytes == 0 ? UINT64_MAX : options.quota_bytes;
  if (options.floor_bytes > quota_bytes) {
    return Refuse(options, fmt::format("a floor of {} bytes is above its quota of {}",
                                       options.floor_bytes, quota_bytes));
  }
  if (options.store_quota_bytes != 0 && options.store_floor_bytes > options.store_quota_bytes) {
    return Refuse(options, fmt::format("a store_floor of {} bytes is above its store_quota of {}",
                                       options.store_floor_bytes, options.store_quota_bytes));
  }
  if (Find(options.name)) return Refuse(options, "the name is taken");
  const TenantId id(static_cast<uint32_t>(tenants_.size()));
  TenantId account = id;
  if (const auto domain = Find(options.domain); domain && At(*domain).options.shared) {
    account = *domain;
  }
  if (!options.domain.empty() && account == id) {
    return Fail(ErrorCode::kNotFound, fmt::format("tenant \"{}\": there is no domain \"{}\"",
                                                  options.name, options.domain));
  }
  const uint64_t limit_bytes = ledger_.limit_bytes();
  if (options.floor_bytes > limit_bytes - floors_bytes()) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("tenant \"{}\": a floor of {} bytes does not fit: the budget is {}, of "
                            "which other floors take {}",
                            options.name, options.floor_bytes, limit_bytes, floors_bytes()));
  }
  auto tenant =
      std::make_shared<Tenant>(options, account, quota_bytes, tenants_[0]->lists.MakeSiblings());
  if (const auto before = removed_.find(options.name); before != removed_.end()) {
    tenant->epoch = before->second;
  }
  tenants_.push_back(std::move(tenant));
  ++live_;
  ShareMemory();
  return id;
}

Result<void> Accounts::CheckRemovable(TenantId id) const {
  const std::string& name = At(id).options.name;
  if (id == kDefaultTenant) {
    return Fail(ErrorCode::kInvalidArgument, "tenant \"default\" cannot be removed");
  }
  uint64_t members = 0;
  ForEach([&](TenantId other) { members += other != id && account_of(other) == id ? 1 : 0; });
  if (members == 0) return {};
  return Fail(
      ErrorCode::kBusy,
      fmt::format("tenant \"{}\": {} tenants publish to it; remove them first", name, members));
}

Result<void> Accounts::Remove(TenantId id) {
  const Tenant& tenant = At(id);
  const uint64_t slots = tenant.slots_written + tenant.slots_stale;
  if (tenant.account.used_bytes() > 0 || slots > 0) {
    return Fail(ErrorCode::kBusy,
                fmt::format("tenant \"{}\": sequences, plans or views hold {} slots of it, and {} "
                            "bytes are charged to it; end them first",
                            tenant.options.name, slots, tenant.account.used_bytes()));
  }
  removed_[tenant.options.name] = tenant.epoch + 1;
  tenants_[id.number()] = gone_;
  --live_;
  ShareMemory();
  return {};
}

Result<TenantId> Accounts::Find(std::string_view name) const {
  for (uint32_t i = 0; i < tenants_.size(); ++i) {
    if (tenants_[i] != gone_ && tenants_[i]->options.name == name) return TenantId(i);
  }
  return Fail(ErrorCode::kNotFound, fmt::format("there is no tenant \"{}\"", name));
}

Result<void> Accounts::Check(TenantId tenant) const {
  if (tenant.number() < tenants_.size() && tenants_[tenant.number()] != gone_) return {};
  return Fail(ErrorCode::kNotFound, fmt::format("there is no tenant {}", tenant.number()));
}

void Accounts::Erase(TenantId id) {
  Tenant& tenant = At(id);
  ++tenant.epoch;
  ++tenant.stats.erased_total;
  tenant.slots_stale += std::exchange(tenant.slots_written, 0);
  // What is known of its requests is a part of what it published.
  At(tenant.account_id).reuse = evict::ReuseEstimator(SamplesPerTenant());
}

TenantStats Accounts::stats(TenantId id) const {
  const Tenant& tenant = At(id);
  TenantStats stats = tenant.stats;
  stats.bytes_used = tenant.account.used_bytes();
  stats.bytes_peak = tenant.account.peak_bytes();
  stats.evictable_bytes = tenant.evictable_bytes;
  stats.erase_pending_slots = tenant.slots_stale;
  stats.pinned_blocks = tenant.pinned_blocks;
  stats.pinned_bytes = tenant.pinned_bytes;
  if (tenant.account_id != id) return stats;
  const uint64_t blocks =
      std::min(tenant.account.quota_bytes(), ledger_.limit_bytes()) / classes_.block_charge_bytes();
  stats.reuse_lookup_blocks = tenant.reuse.uses();
  for (LruEstimate& estimate : stats.lru_estimates) {
    estimate.blocks = static_cast<uint64_t>(estimate.size * static_cast<double>(blocks));
    estimate.hit_ratio = tenant.reuse.HitRatio(estimate.blocks);
  }
  return stats;
}

uint64_t Accounts::floors_bytes() const {
  uint64_t bytes = 0;
  ForEach([&](TenantId tenant) { bytes += options(tenant).floor_bytes; });
  return bytes;
}

bool Accounts::TryCharge(TenantId tenant, uint64_t bytes) {
  if (!ledger_.TryCharge(bytes)) return false;
  At(tenant).account.Charge(bytes);
  return true;
}

void Accounts::Refund(TenantId tenant, uint64_t bytes) {
  At(tenant).account.Refund(bytes);
  ledger_.Refund(bytes);
}

void Accounts::MoveCharge(SlotId slot, TenantId to) {
  const TenantId from = std::exchange(payers_[slot.number()], to);
  if (from == to) return;
  const uint64_t bytes = classes_.charge_bytes(slot);
  At(from).account.Refund(bytes);
  At(to).account.Charge(bytes);
}

void Accounts::SetCapacity(const Capacity& capacity) {
  ledger_.SetLimit(capacity.ledger_bytes);
  // One for every slot that the budget pays for.
  memory_slots_ = capacity.ledger_bytes / classes_.charge_bytes(uint32_t{0});
  ShareMemory();
}

// Each one has the same share, whatever others do, of what is left when their own bookkeeping is
// paid; a little of it in any case.
void Accounts::ShareMemory() {
  const uint64_t bytes = memory_slots_ * classes_.memory_bytes();
  const uint64_t tenants_bytes = (live_ - 1) * kTenantBytes;
  share_ = std::max((bytes - std::min(bytes, tenants_bytes)) / classes_.memory_bytes() / live_,
                    std::min(memory_slots_ / live_, kShareLeast));
  for (const auto& tenant : tenants_) {
    if (tenant == gone_) continue;
    tenant->reuse.SetCapacity(SamplesPerTenant());
    tenant->lists.whole->SetHistory(share_ * classes_.history_bytes());
  }
}

uint32_t Accounts::SamplesPerTenant() const {
  return static_cast<uint32_t>(std::clamp<uint64_t>(share_, 1, evict::ReuseEstimator::kSamplesMax));
}

void Accounts::CountWritten(TenantId id, uint32_t epoch, int64_t slots) {
  Tenant& tenant = At(id);
  (epoch == tenant.epoch ? tenant.slots_written : tenant.slots_stale) += slots;
}

uint64_t Accounts::PinLimit(TenantId account) const {
  const uint64_t others_bytes = floors_bytes() - At(account).options.floor_bytes;
  return std::min(ledger_.limit_bytes() - others_bytes, At(account).account.quota_bytes());
}

void Accounts::CountPinned(TenantId account, int64_t blocks, int64_t bytes) {
  At(account).pinned_blocks += blocks;
  At(account).pinned_bytes += bytes;
}

uint64_t Accounts::CapacityBytes(const Asker& asker) const {
  const Tenant& tenant = At(asker.tenant);
  const uint64_t quota_bytes = tenant.account.capacity_bytes();
  const uint64_t free_bytes = ledger_.available_bytes();
  if (!asker.may_evict) return std::min(quota_bytes, free_bytes);
  const uint64_t own_bytes = std::min(UINT64_MAX - quota_bytes, tenant.evictable_bytes);
  return std::min(quota_bytes + own_bytes, free_bytes + EvictableFor(asker.tenant));
}

Result<void> Accounts::CheckCapacity(const Asker& asker, uint64_t bytes) const {
  const Tenant& tenant = At(asker.tenant);
  const quota::Account& account = tenant.account;
  const uint64_t own_bytes = asker.may_evict ? tenant.evictable_bytes : 0;
  if (bytes - std::min(bytes, account.capacity_bytes()) > own_bytes) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} bytes needed, the quota of tenant \"{}\" is {}, of which {} are "
                            "free or evictable",
                            bytes, tenant.options.name, account.quota_bytes(),
                            account.capacity_bytes() + own_bytes));
  }
  if (bytes > CapacityBytes(asker)) return Fail(ErrorCode::kNoSpace, "");
  return {};
}

uint64_t Accounts::EvictableFor(TenantId tenant) const {
  const uint32_t classes =
      classes_.residual_blocks() > 0 ? classes_.count() : classes_.group_count();
  uint64_t victim_bytes = 0;
  for (uint32_t c = 0; c < classes; ++c) victim_bytes += classes_.charge_bytes(c);
  uint64_t bytes = 0;
  ForEach([&](TenantId id) {
    const Tenant& other = At(id);
    bytes += id == tenant ? other.evictable_bytes
                          : other.account.Spare(other.evictable_bytes, victim_bytes,
                                                /*same_size=*/classes == 1);
  });
  return bytes;
}

uint64_t Accounts::WantedOfQuota(TenantId id, uint64_t needed) {
  Tenant& tenant = At(id);
  return WantedBytes(tenant.batch, needed, tenant.account.capacity_bytes(),
                     tenant.account.quota_bytes());
}

uint64_t Accounts::WantedOfBudget(uint64_t needed) {
  return WantedBytes(batch_, needed, ledger_.available_bytes(), ledger_.limit_bytes());
}

uint64_t Accounts::WantedBytes(evict::BatchSize& batch, uint64_t needed, uint64_t unused,
                               uint64_t capacity) const {
  if (batch_mode_ == EvictionBatch::kExact) return needed;
  return std::max(needed, unused + batch.Next(needed, unused, capacity));
}

void Accounts::List(BlockId block, TenantId account, const Evictable& what,
                    evict::BlockFacts facts) {
  ReserveBlocks(block.number() + 1);
  Listing& listing = listings_[block.number()];
  if (listing.what.listed != what.listed) {
    Leave(block, /*stays=*/true, /*evicted=*/false);
    Tenant& tenant = At(account);
    if (what.listed != Listed::kNowhere) {
      if (listing.retained_until_us > 0) {
        facts.priority = listing.priority;
        // In the milliseconds of requests, not a moment early; the largest is for good.
        const uint64_t until_us = listing.retained_until_us;
        facts.expires_ms =
            until_us == UINT64_MAX ? 0 : until_us / 1000 + (until_us % 1000 > 0 ? 1 : 0);
      }
      (what.listed == Listed::kWhole ? tenant.lists.whole : tenant.lists.passed)->Add(block, facts);
      listing.account = account;
      listing.stamp = next_stamp_++;
    }
    listing.what.listed = what.listed;
    if (what.listed == Listed::kWhole) {
      if (tenant.options.ttl_us > 0) tenant.lists.aging->Add(block, {});
      // Many blocks are let go of at once: the clock is read for the first of them.
      if (!hold_us_) hold_us_ = clock_.NowMicros();
      listing.listed_us = *hold_us_;
    }
  }
  At(account).evictable_bytes += what.bytes - listing.what.bytes;
  listing.what = what;
}

void Accounts::Leave(BlockId block, bool stays, bool evicted) {
  Listing& listing = listings_[block.number()];
  if (listing.what.listed == Listed::kNowhere) return;
  Tenant& tenant = At(listing.account);
  if (listing.what.listed == Listed::kWhole) {
    if (stays) {
      tenant.lists.whole->Remove(block);
    } else if (evicted) {
      tenant.lists.whole->Evict(block);
    } else {
      tenant.lists.whole->Forget(block);
    }
    if (tenant.options.ttl_us > 0) tenant.lists.aging->Remove(block);
  } else {
    tenant.lists.passed->Remove(block);
  }
  tenant.evictable_bytes -= listing.what.bytes;
  listing.what = {};
}

void Accounts::Unlist(BlockId block) {
  if (block.number() < listings_.size()) Leave(block, /*stays=*/true, /*evicted=*/false);
}

void Accounts::Remove(BlockId block, bool evicted) {
  if (block.number() >= listings_.size()) return;
  Leave(block, /*stays=*/false, evicted);
  listings_[block.number()] = {};
}

std::optional<Victim> Accounts::VictimOf(TenantId account) const {
  const EvictionLists& lists = At(account).lists;
  std::optional<Victim> victim;
  if (const auto whole = lists.whole->Victim()) {
    const Listing& listing = listings_[whole->number()];
    const uint64_t twin_bytes = listing.what.twin_bytes;
    const bool twins = twin_bytes > 0 && twin_bytes < listing.what.bytes;
    victim = {.block = *whole,
              .goes = twins ? Goes::kTwins : Goes::kWhole,
              .stamp = listing.stamp,
              .bytes = twins ? twin_bytes : listing.what.bytes};
  }
  if (const auto passed = lists.passed->Victim()) {
    const Listing& listing = listings_[passed->number()];
    if (!victim || listing.stamp < victim->stamp) {
      victim = {.block = *passed,
                .goes = Goes::kSlots,
                .stamp = listing.stamp,
                .bytes = listing.what.bytes};
    }
  }
  return victim;
}

std::optional<Victim> Accounts::VictimFor(TenantId tenant) const {
  std::optional<Victim> oldest;
  ForEach([&](TenantId id) {
    const auto victim = VictimOf(id);
    if (!victim || (oldest && oldest->stamp < victim->stamp)) return;
    if (id == tenant || At(id).account.MayLose(victim->bytes)) oldest = victim;
  });
  return oldest;
}

std::optional<Victim> Accounts::OldestVictim() const {
  std::optional<Victim> oldest;
  ForEach([&](TenantId id) {
    const auto victim = VictimOf(id);
    if (victim && (!oldest || victim->stamp < oldest->stamp)) oldest = victim;
  });
  return oldest;
}

// The least recent first, whatever the policy would choose, so the first that is young enough is
// followed by younger ones.
std::optional<BlockId> Accounts::Expired(TenantId account) const {
  const Tenant& tenant = At(account);
  if (tenant.options.ttl_us == 0) return std::nullopt;
  const auto victim = tenant.lists.aging->Victim();
  if (!victim) return std::nullopt;
  const uint64_t age_us = clock_.NowMicros() - listings_[victim->number()].listed_us;
  if (age_us < tenant.options.ttl_us) return std::nullopt;
  return victim;
}

void Accounts::BeginUse(TenantId tenant, uint32_t epoch, const PathUse& use) {
  Tenant& account = At(account_of(tenant));
  // A prompt's last token is never looked up.
  const uint64_t asked =
      use.asked ? std::min<uint64_t>(ReusableBlocks(use.prompt_tokens, classes_.block_tokens()),
                                     use.keys.size())
                : 0;
  if (epoch == At(tenant).epoch) {  // else it was erased since
    account.reuse.Use(use.keys, use.user == User::kRequest ? asked : 0);
  }
  if (use.user == User::kOther || !account.lists.whole->hears_requests()) return;
  account.lists.whole->Begin({.time_ms = clock_.NowMicros() / 1000,
                              .keys = use.keys,
                              .prompt_tokens = use.prompt_tokens,
                              .output_tokens = use.output_tokens,
                              .asked_blocks = asked,
                              .hit_blocks = use.hit_blocks});
}

void Accounts::Retain(BlockId block, uint8_t priority, uint64_t until_us) {
  ReserveBlocks(block.number() + 1);
  Listing& listing = listings_[block.number()];
  const bool stands = listing.retained_until_us > clock_.NowMicros();
  listing.priority = stands ? std::max(listing.priority, priority) : priority;
  listing.retained_until_us = stands ? std::max(listing.retained_until_us, until_us) : until_us;
}

void Accounts::Advance() {
  const uint64_t now_us = clock_.NowMicros();
  ForEach([&](TenantId tenant) { At(tenant).lists.whole->Advance(now_us / 1000); });
}

}  // namespace quire::cache

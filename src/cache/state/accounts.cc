#include "cache/state/accounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/verbs/hit_length.h"

namespace quire::cache {
namespace {

/// Most that a tenant takes which remembers nothing: its record, lists, statistics, empty tables.
constexpr uint64_t kTenantBytes = 3072;
/// Slots whose share of memory each tenant has, where there are as many.
constexpr uint64_t kShareLeast = 8;

}  // namespace

Accounts::Accounts(const SlotClasses& classes, const Clock& clock, std::string_view policy,
                   EvictionBatch batch, const Capacity& capacity, quota::Ledger* shared)
    : classes_(classes),
      clock_(clock),
      batch_mode_(batch),
      charges_(tenants_, classes, capacity.ledger_bytes, shared),
      order_(clock, policy, classes.has_ladder()),
      records_(std::make_shared<Record>()) {
  auto record = std::make_shared<Record>();
  record->counters.name = tenants_.options(kDefaultTenant).name;
  records_.Put(kDefaultTenant, std::move(record));
  SetCapacity(capacity);
}

Result<void> Accounts::CheckFloor(const std::string& name, uint64_t floor_bytes,
                                  uint64_t others_bytes) const {
  const uint64_t limit_bytes = charges_.ledger().limit_bytes();
  if (floor_bytes <= limit_bytes - others_bytes) return {};
  return Fail(ErrorCode::kNoSpace,
              fmt::format("tenant \"{}\": a floor of {} bytes does not fit: the budget is {}, of "
                          "which other floors take {}",
                          name, floor_bytes, limit_bytes, others_bytes));
}

Result<void> Accounts::CheckLimits(TenantId id, uint64_t quota_bytes, uint64_t floor_bytes) const {
  QUIRE_TRY(tenants_.Check(id));
  const TenantOptions& options = tenants_.options(id);
  if (quota_bytes != 0 && floor_bytes > quota_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("tenant \"{}\": a floor of {} bytes is above its quota of {}",
                            options.name, floor_bytes, quota_bytes));
  }
  return CheckFloor(options.name, floor_bytes, tenants_.floors_bytes() - options.floor_bytes);
}

Result<void> Accounts::SetLimits(TenantId id, uint64_t quota_bytes, uint64_t floor_bytes) {
  QUIRE_TRY(CheckLimits(id, quota_bytes, floor_bytes));
  const uint64_t used_bytes = charges_.account(id).used_bytes();
  if (quota_bytes != 0 && used_bytes > quota_bytes) {
    return Fail(ErrorCode::kBusy,
                fmt::format("tenant \"{}\": a quota of {} bytes is less than the {} that its "
                            "sequences, plans, views and pins hold",
                            tenants_.options(id).name, quota_bytes, used_bytes));
  }
  charges_.SetLimits(id, quota_bytes, floor_bytes);
  tenants_.SetLimits(id, quota_bytes, floor_bytes);
  records_[id].counters.quota_bytes = quota_bytes;
  records_[id].counters.floor_bytes = floor_bytes;
  return {};
}

Result<TenantId> Accounts::Add(const TenantOptions& options) {
  QUIRE_TRY(tenants_.CheckNew(options));
  QUIRE_TRY(CheckFloor(options.name, options.floor_bytes, tenants_.floors_bytes()));
  const TenantId id = tenants_.next();
  auto record = std::make_shared<Record>();
  record->counters.name = options.name;
  record->counters.quota_bytes = options.quota_bytes;
  record->counters.floor_bytes = options.floor_bytes;
  records_.Put(id, std::move(record));
  charges_.Add(id, options);
  order_.AddAccount(id, options.ttl_us);
  tenants_.Add(options);  // now the tenant exists
  ShareMemory();
  return id;
}

Result<void> Accounts::Remove(TenantId id) {
  const uint64_t bytes = charges_.account(id).used_bytes();
  const uint64_t slots = charges_.written_slots(id);
  if (bytes > 0 || slots > 0) {
    return Fail(ErrorCode::kBusy,
                fmt::format("tenant \"{}\": sequences, plans or views hold {} slots of it, and {} "
                            "bytes are charged to it; end them first",
                            tenants_.options(id).name, slots, bytes));
  }
  tenants_.Remove(id);
  charges_.Remove(id);
  order_.RemoveAccount(id);
  records_.Remove(id);
  ShareMemory();
  return {};
}

void Accounts::Erase(TenantId id) {
  tenants_.RaiseEpoch(id);
  ++records_[id].counters.erased_total;
  charges_.AgeWritten(id);
  // The estimator has keys of what the tenant published, so it is erased too.
  records_[tenants_.account_of(id)].reuse = evict::ReuseEstimator(SamplesPerTenant());
}

TenantStats Accounts::stats(TenantId id) const {
  const Record& record = records_[id];
  const quota::Account& account = charges_.account(id);
  TenantStats stats = record.counters;
  stats.bytes_used = account.used_bytes();
  stats.bytes_peak = account.peak_bytes();
  stats.evictable_bytes = order_.evictable_bytes(id);
  stats.erase_pending_slots = charges_.stale_slots(id);
  stats.pinned_blocks = charges_.pinned_blocks(id);
  stats.pinned_bytes = charges_.pinned_bytes(id);
  if (tenants_.account_of(id) != id) return stats;
  const uint64_t blocks = std::min(account.quota_bytes(), charges_.ledger().limit_bytes()) /
                          classes_.block_charge_bytes();
  stats.reuse_lookup_blocks = record.reuse.uses();
  for (LruEstimate& estimate : stats.lru_estimates) {
    estimate.blocks = static_cast<uint64_t>(estimate.size * static_cast<double>(blocks));
    estimate.hit_ratio = record.reuse.HitRatio(estimate.blocks);
  }
  return stats;
}

void Accounts::SetCapacity(const Capacity& capacity) {
  charges_.SetLimit(capacity.ledger_bytes);
  // One slot's memory for every slot that the budget pays for.
  memory_slots_ = capacity.ledger_bytes / classes_.charge_bytes(uint32_t{0});
  ShareMemory();
}

// Each tenant has the same share of the memory that is left after the bookkeeping of tenants,
// whatever others do; and a minimum in any case.
void Accounts::ShareMemory() {
  const uint64_t bytes = memory_slots_ * classes_.memory_bytes();
  const uint64_t tenants = tenants_.count();
  const uint64_t tenants_bytes = (tenants - 1) * kTenantBytes;
  share_ = std::max((bytes - std::min(bytes, tenants_bytes)) / classes_.memory_bytes() / tenants,
                    std::min(memory_slots_ / tenants, kShareLeast));
  tenants_.ForEach([&](TenantId id) {
    records_[id].reuse.SetCapacity(SamplesPerTenant());
    records_[id].ghosts.SetCapacity(share_);
  });
  order_.SetHistory(share_ * classes_.history_bytes());
}

uint32_t Accounts::SamplesPerTenant() const {
  return static_cast<uint32_t>(std::clamp<uint64_t>(share_, 1, evict::ReuseEstimator::kSamplesMax));
}

uint64_t Accounts::CapacityBytes(const Asker& asker) const {
  const uint64_t quota_bytes = charges_.account(asker.tenant).capacity_bytes();
  const uint64_t free_bytes = charges_.ledger().available_bytes();
  if (!asker.may_evict) return std::min(quota_bytes, free_bytes);
  const uint64_t own_bytes =
      std::min(UINT64_MAX - quota_bytes, order_.evictable_bytes(asker.tenant));
  return std::min(quota_bytes + own_bytes, free_bytes + EvictableFor(asker.tenant));
}

Result<void> Accounts::CheckCapacity(const Asker& asker, uint64_t bytes) const {
  const quota::Account& account = charges_.account(asker.tenant);
  const uint64_t own_bytes = asker.may_evict ? order_.evictable_bytes(asker.tenant) : 0;
  if (bytes - std::min(bytes, account.capacity_bytes()) > own_bytes) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} bytes needed, the quota of tenant \"{}\" is {}, of which {} are "
                            "free or evictable",
                            bytes, tenants_.options(asker.tenant).name, account.quota_bytes(),
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
  tenants_.ForEach([&](TenantId id) {
    const uint64_t evictable_bytes = order_.evictable_bytes(id);
    bytes += id == tenant ? evictable_bytes
                          : charges_.account(id).Spare(evictable_bytes, victim_bytes,
                                                       /*same_size=*/classes == 1);
  });
  return bytes;
}

std::optional<Victim> Accounts::VictimFor(TenantId tenant) const {
  return order_.OldestVictim([&](TenantId account, const Victim& victim) {
    return account == tenant || charges_.account(account).MayLose(victim.bytes);
  });
}

uint64_t Accounts::WantedOfQuota(TenantId tenant, uint64_t needed) {
  const quota::Account& account = charges_.account(tenant);
  return WantedBytes(records_[tenant].batch, needed, account.capacity_bytes(),
                     account.quota_bytes());
}

uint64_t Accounts::WantedOfBudget(uint64_t needed) {
  const quota::Ledger& ledger = charges_.ledger();
  return WantedBytes(batch_, needed, ledger.available_bytes(), ledger.limit_bytes());
}

uint64_t Accounts::WantedBytes(evict::BatchSize& batch, uint64_t needed, uint64_t unused,
                               uint64_t capacity) const {
  if (batch_mode_ == EvictionBatch::kExact) return needed;
  return std::max(needed, unused + batch.Next(needed, unused, capacity));
}

bool Accounts::BeginUse(TenantId tenant, uint32_t epoch, const PathUse& use, UseProgress& progress,
                        uint64_t& keys_left) {
  const TenantId account = tenants_.account_of(tenant);
  // A prompt's last token is never looked up.
  const uint64_t asked =
      use.asked ? std::min<uint64_t>(ReusableBlocks(use.prompt_tokens, classes_.block_tokens()),
                                     use.keys.size())
                : 0;
  if (epoch == tenants_.epoch(tenant)) {  // else the tenant was erased since
    const auto counted = use.keys.first(use.user == User::kRequest ? asked : 0);
    if (!CountUse(account, counted, use.keys, progress, keys_left)) return false;
  }
  if (use.user == User::kOther || !order_.hears_requests()) return true;
  return order_.BeginUse(account,
                         {.time_ms = clock_.NowMicros() / 1000,
                          .keys = use.keys,
                          .prompt_tokens = use.prompt_tokens,
                          .output_tokens = use.output_tokens,
                          .asked_blocks = asked,
                          .hit_blocks = use.hit_blocks},
                         progress.begun, keys_left);
}

bool Accounts::CountUse(TenantId account, std::span<const uint64_t> asked,
                        std::span<const uint64_t> keys, UseProgress& progress,
                        uint64_t& keys_left) {
  evict::ReuseEstimator& reuse = records_[account].reuse;
  const uint64_t counted = std::min<uint64_t>(asked.size() - progress.counted, keys_left);
  reuse.CountAsked(asked.subspan(progress.counted, counted));
  progress.counted += counted;
  keys_left -= counted;
  if (progress.counted < asked.size()) return false;
  const uint64_t touched = std::min<uint64_t>(keys.size() - progress.touched, keys_left);
  reuse.Touch(keys.first(keys.size() - progress.touched).last(touched));
  progress.touched += touched;
  keys_left -= touched;
  return progress.touched == keys.size();
}

}  // namespace quire::cache

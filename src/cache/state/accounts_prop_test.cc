// The accounts alone, in lock step with naive ones: whose block is evicted for which tenant, and
// how much room a tenant has. The objects in them are compared in their own tests.
#include "cache/state/accounts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/state/naive_order.h"
#include "cache/state/naive_tenants.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kSlots = 40;

class LockStep {
 public:
  void Step(Prng& prng) {
    accounts_.order().EndHold();
    switch (prng.NextBelow(12)) {
      case 0: AddTenant(prng); break;
      case 1:
      case 2:
      case 3: Charge(prng); break;
      case 4: Refund(prng); break;
      case 5:
      case 6:
      case 7: List(prng); break;
      case 8: naive_.Unlist(accounts_.order(), NaiveOrder::AnyBlock(prng), prng); break;
      case 9: Erase(prng); break;
      case 10: CountPinned(prng); break;
      default: clock_.Advance(prng.NextBelow(100));
    }
    Compare(prng);
  }

 private:
  static CacheOptions Options() {
    const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    return {.geometry = SmallGeometry(),
            .profile = profile,
            .hot_bytes = kSlots / 2 * ChargePerSlot(SmallGeometry(), profile),
            .tokens_max = 1 << 12};
  }

  uint64_t Charged() const {
    uint64_t bytes = 0;
    for (const auto& [tenant, used_bytes] : used_bytes_) bytes += used_bytes;
    return bytes;
  }
  uint64_t QuotaBytes(TenantId tenant) const {
    const uint64_t bytes = tenants_.At(tenant).options.quota_bytes;
    return bytes == 0 ? UINT64_MAX : bytes;
  }

  // Makes the same call on both.

  void AddTenant(Prng& prng) {
    if (tenants_.count() > 8) return;
    TenantOptions options = NaiveTenants::AnyOptions(prng, /*names=*/11, charge_bytes_);
    if (prng.NextChance(3)) options.ttl_us = 1 + prng.NextBelow(300);
    ErrorCode expected = tenants_.ErrorOf(options);
    if (expected == ErrorCode{} &&
        options.floor_bytes + tenants_.FloorsBytes() > capacity_.ledger_bytes) {
      expected = ErrorCode::kNoSpace;
    }
    const auto added = accounts_.Add(options);
    ASSERT_EQ(added.has_value(), expected == ErrorCode{});
    if (!added) {
      ASSERT_EQ(added.error().code, expected) << added.error().message;
      return;
    }
    ASSERT_EQ(*added, tenants_.next());
    tenants_.Add(options);
  }

  void Charge(Prng& prng) {
    const TenantId tenant = tenants_.Any(prng);
    if (slots_.size() == kSlots || used_bytes_[tenant] + charge_bytes_ > QuotaBytes(tenant)) return;
    const bool fits = Charged() + charge_bytes_ <= capacity_.ledger_bytes;
    ASSERT_EQ(accounts_.charges().TryCharge(tenant, charge_bytes_), fits);
    if (!fits) return;
    slots_.push_back(tenant);
    used_bytes_[tenant] += charge_bytes_;
    accounts_.charges().CountWritten(tenant, tenants_.At(tenant).epoch, 1);
    ++written_[tenant];
  }
  void Refund(Prng& prng) {
    if (slots_.empty()) return;
    const size_t i = prng.NextBelow(slots_.size());
    accounts_.charges().Refund(slots_[i], charge_bytes_);
    used_bytes_[slots_[i]] -= charge_bytes_;
    slots_.erase(slots_.begin() + static_cast<ptrdiff_t>(i));
  }

  void List(Prng& prng) {
    const BlockId block = NaiveOrder::AnyBlock(prng);
    const auto known = naive_.listed().find(block);
    const bool is_listed = known != naive_.listed().end();
    const TenantId account =
        is_listed ? known->second.account : tenants_.At(tenants_.Any(prng)).account;
    Evictable what;
    if (!prng.NextChance(5)) {
      what.listed = prng.NextChance(3) ? Listed::kSlots : Listed::kWhole;
      what.bytes = charge_bytes_;
      if (prng.NextChance(3)) what.twin_bytes = 100;
    }
    // More than the account holds cannot be evicted from it.
    const uint64_t others_bytes =
        naive_.Bytes(account) - (is_listed ? known->second.what.bytes : 0);
    if (others_bytes + what.bytes > used_bytes_[account]) return;
    naive_.List(accounts_.order(), block, account, what, clock_.NowMicros());
  }
  void Erase(Prng& prng) {
    const TenantId tenant = tenants_.Any(prng);
    accounts_.Erase(tenant);
    ++tenants_.At(tenant).epoch;
    stale_[tenant] += std::exchange(written_[tenant], 0);
  }
  void CountPinned(Prng& prng) {
    const TenantId account = tenants_.Any(prng);
    uint64_t& pinned = pinned_[account];
    const int64_t more = pinned == 0 || prng.NextChance(2) ? 1 : -1;
    accounts_.charges().CountPinned(account, more, more * 70);
    pinned += static_cast<uint64_t>(more);
  }

  // Compares all visible state.

  void Compare(Prng& prng) {
    for (uint32_t i = 0; i < tenants_.count(); ++i) {
      CompareTenant(TenantId(i), prng.NextBelow(10) * charge_bytes_);
    }
    naive_.ExpectVictim(accounts_.order().OldestVictim(),
                        naive_.First([](const NaiveOrder::Listing&) { return false; }));
  }

  void CompareTenant(TenantId tenant, uint64_t wanted_bytes) {
    ASSERT_EQ(accounts_.tenants().epoch(tenant), tenants_.At(tenant).epoch);
    ASSERT_EQ(accounts_.charges().stale_slots(tenant), stale_[tenant]);
    ASSERT_EQ(accounts_.charges().written_slots(tenant), stale_[tenant] + written_[tenant]);
    const TenantStats stats = accounts_.stats(tenant);
    ASSERT_EQ(stats.bytes_used, used_bytes_[tenant]);
    ASSERT_EQ(stats.bytes_peak, accounts_.charges().account(tenant).peak_bytes());
    ASSERT_EQ(stats.evictable_bytes, naive_.Bytes(tenant));
    ASSERT_EQ(stats.pinned_blocks, pinned_[tenant]);
    ASSERT_EQ(stats.pinned_bytes, pinned_[tenant] * 70);
    ASSERT_EQ(stats.erased_total, tenants_.At(tenant).epoch);
    CompareExpired(tenant);
    CompareVictimFor(tenant);
    CompareCapacity(tenant, wanted_bytes);
  }

  // The ttl belongs to the tenant that owns the account.
  void CompareExpired(TenantId tenant) const {
    const auto expired = naive_.First([&](const NaiveOrder::Listing& listing) {
      return listing.account != tenant || listing.what.listed != Listed::kWhole;
    });
    const uint64_t ttl_us = tenants_.At(tenant).options.ttl_us;
    const bool is_due = expired && ttl_us > 0 &&
                        clock_.NowMicros() - naive_.listed().at(*expired).listed_us >= ttl_us;
    ASSERT_EQ(accounts_.order().Expired(tenant), is_due ? expired : std::nullopt);
  }

  bool LeavesFloor(TenantId account, uint64_t bytes) const {
    return UsedBytes(account) >= tenants_.At(account).options.floor_bytes + bytes;
  }
  uint64_t UsedBytes(TenantId tenant) const {
    const auto found = used_bytes_.find(tenant);
    return found == used_bytes_.end() ? 0 : found->second;
  }

  // The oldest victim of each account, but of others' only victims that leave them their floor.
  void CompareVictimFor(TenantId tenant) const {
    std::optional<BlockId> oldest;
    for (uint32_t i = 0; i < tenants_.count(); ++i) {
      const TenantId account(i);
      const auto first = naive_.FirstOf(account);
      if (!first) continue;
      if (account != tenant && !LeavesFloor(account, naive_.VictimAt(*first).bytes)) continue;
      if (!oldest || naive_.GoesBefore(*first, *oldest)) oldest = first;
    }
    naive_.ExpectVictim(accounts_.VictimFor(tenant), oldest);
  }

  // All blocks are of one size, so others can lose whole blocks above their floors.
  void CompareCapacity(TenantId tenant, uint64_t wanted_bytes) const {
    uint64_t evictable = 0;
    for (uint32_t i = 0; i < tenants_.count(); ++i) {
      const TenantId account(i);
      uint64_t bytes = 0;
      for (uint64_t left = naive_.Bytes(account); left > 0; left -= charge_bytes_) {
        if (account == tenant || LeavesFloor(account, bytes + charge_bytes_)) {
          bytes += charge_bytes_;
        }
      }
      evictable += bytes;
    }
    ASSERT_EQ(accounts_.EvictableFor(tenant), evictable);
    const uint64_t free_bytes = capacity_.ledger_bytes - Charged();
    const uint64_t quota_capacity = QuotaBytes(tenant) - UsedBytes(tenant);
    const uint64_t own_bytes = naive_.Bytes(tenant);
    const uint64_t of_quota =
        quota_capacity > UINT64_MAX - own_bytes ? UINT64_MAX : quota_capacity + own_bytes;
    const uint64_t room = std::min(of_quota, free_bytes + evictable);
    ASSERT_EQ(accounts_.CapacityBytes({.tenant = tenant}), room);
    ASSERT_EQ(accounts_.CapacityBytes({.tenant = tenant, .may_evict = false}),
              std::min(quota_capacity, free_bytes));
    const auto checked = accounts_.CheckCapacity({.tenant = tenant}, wanted_bytes);
    ASSERT_EQ(checked.has_value(), wanted_bytes <= room);
    if (!checked) {
      ASSERT_EQ(checked.error().code, ErrorCode::kNoSpace);
      ASSERT_EQ(checked.error().message.empty(), wanted_bytes <= of_quota) << "whose fault it is";
    }
  }

  ManualClock clock_{1000};
  const SlotClasses classes_ = Must(SlotClasses::Create(Options()));
  const Capacity capacity_ = classes_.CapacityFor(Options().hot_bytes);
  const uint64_t charge_bytes_ = classes_.charge_bytes(uint32_t{0});
  Accounts accounts_{classes_, clock_, "lru", EvictionBatch::kExact, capacity_, nullptr};
  NaiveTenants tenants_;
  NaiveOrder naive_;
  std::vector<TenantId> slots_;  // the tenant that pays for each
  std::map<TenantId, uint64_t> used_bytes_;
  std::map<TenantId, uint64_t> pinned_;   // blocks
  std::map<TenantId, uint64_t> written_;  // slots, in the present epoch
  std::map<TenantId, uint64_t> stale_;    // and in older ones
};

RC_GTEST_PROP(AccountsProperty, AgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  LockStep both;
  StepFromSeeds(both, seeds, 4);
}

}  // namespace
}  // namespace quire::cache

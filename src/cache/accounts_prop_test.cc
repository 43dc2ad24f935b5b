// The accounts alone, in lock step with naive ones: sums over plain records of who holds what, and
// the order of eviction as a list of what was listed when.
#include "cache/accounts.h"

// gtest before rapidcheck
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kBlocks = 30;
constexpr uint32_t kSlots = 40;

struct NaiveTenant {
  TenantOptions options{};
  TenantId account{};
  uint64_t used_bytes = 0;
  uint64_t peak_bytes = 0;
  uint32_t epoch = 0;
  int64_t pinned_blocks = 0;
  int64_t pinned_bytes = 0;
  std::map<uint32_t, int64_t> written{};  // slots held by epoch

  uint64_t quota_bytes() const {
    return options.quota_bytes == 0 ? UINT64_MAX : options.quota_bytes;
  }
};

struct NaiveListing {
  TenantId account{};
  Evictable what;
  uint64_t since = 0;      // a count of listings
  uint64_t listed_us = 0;  // whole, by the clock
};

class LockStep {
 public:
  LockStep() { tenants_.push_back({.options = {.name = "default"}, .account = kDefaultTenant}); }

  void Step(Prng& prng) {
    accounts_.order().EndHold();
    switch (prng.NextBelow(12)) {
      case 0: AddTenant(prng); break;
      case 1:
      case 2: Charge(prng); break;
      case 3: Refund(prng); break;
      case 4: MoveCharge(prng); break;
      case 5:
      case 6:
      case 7: List(prng); break;
      case 8: Unlist(prng); break;
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

  TenantId AnyTenant(Prng& prng) const {
    return TenantId(static_cast<uint32_t>(prng.NextBelow(tenants_.size())));
  }
  NaiveTenant& At(TenantId tenant) { return tenants_[tenant.number()]; }
  const NaiveTenant& At(TenantId tenant) const { return tenants_[tenant.number()]; }
  uint64_t Charged() const {
    uint64_t bytes = 0;
    for (const NaiveTenant& tenant : tenants_) bytes += tenant.used_bytes;
    return bytes;
  }
  uint64_t Floors() const {
    uint64_t bytes = 0;
    for (const NaiveTenant& tenant : tenants_) bytes += tenant.options.floor_bytes;
    return bytes;
  }
  uint64_t EvictableBytes(TenantId account) const {
    uint64_t bytes = 0;
    for (const auto& [block, listing] : listed_) {
      if (listing.account == account) bytes += listing.what.bytes;
    }
    return bytes;
  }

  // The same call on both.

  void AddTenant(Prng& prng) {
    if (tenants_.size() > 8) return;
    TenantOptions options;
    const uint64_t name = prng.NextBelow(12);
    if (name > 0) options.name = "t" + std::to_string(name);
    if (prng.NextChance(2)) options.quota_bytes = (1 + prng.NextBelow(12)) * charge_bytes_;
    if (prng.NextChance(2)) options.floor_bytes = prng.NextBelow(8) * charge_bytes_;
    if (prng.NextChance(3)) options.ttl_us = 1 + prng.NextBelow(300);
    if (prng.NextChance(3)) options.domain = "t" + std::to_string(1 + prng.NextBelow(12));
    options.shared = prng.NextChance(3);
    const auto named = [&](std::string_view wanted) {
      return std::ranges::find_if(
          tenants_, [&](const NaiveTenant& tenant) { return tenant.options.name == wanted; });
    };
    const auto domain = named(options.domain);
    ErrorCode expected{};
    if (options.name.empty() || (options.shared && !options.domain.empty()) ||
        (options.quota_bytes > 0 && options.floor_bytes > options.quota_bytes) ||
        named(options.name) != tenants_.end()) {
      expected = ErrorCode::kInvalidArgument;
    } else if (!options.domain.empty() && (domain == tenants_.end() || !domain->options.shared)) {
      expected = ErrorCode::kNotFound;
    } else if (options.floor_bytes + Floors() > capacity_.ledger_bytes) {
      expected = ErrorCode::kNoSpace;
    }
    const auto added = accounts_.Add(options);
    ASSERT_EQ(added.has_value(), expected == ErrorCode{});
    if (!added) {
      ASSERT_EQ(added.error().code, expected) << added.error().message;
      return;
    }
    ASSERT_EQ(*added, TenantId(static_cast<uint32_t>(tenants_.size())));
    const TenantId account = options.domain.empty()
                                 ? *added
                                 : TenantId(static_cast<uint32_t>(domain - tenants_.begin()));
    tenants_.push_back({.options = options, .account = account});
  }

  void Charge(Prng& prng) {
    const auto free = std::ranges::find(payers_, TenantId::None());
    const TenantId tenant = AnyTenant(prng);
    NaiveTenant& naive = At(tenant);
    if (free == payers_.end() || naive.used_bytes + charge_bytes_ > naive.quota_bytes()) return;
    const bool fits = Charged() + charge_bytes_ <= capacity_.ledger_bytes;
    ASSERT_EQ(accounts_.charges().TryCharge(tenant, charge_bytes_), fits);
    if (!fits) return;
    const SlotId slot(static_cast<uint32_t>(free - payers_.begin()));
    accounts_.charges().ReserveSlots(slot.number() + 1);
    accounts_.charges().SetPayer(slot, tenant);
    *free = tenant;
    naive.used_bytes += charge_bytes_;
    naive.peak_bytes = std::max(naive.peak_bytes, naive.used_bytes);
    peak_bytes_ = std::max(peak_bytes_, Charged());
    accounts_.charges().CountWritten(tenant, naive.epoch, 1);
    ++naive.written[naive.epoch];
  }
  std::optional<SlotId> AnySlot(Prng& prng) const {
    const SlotId slot(static_cast<uint32_t>(prng.NextBelow(kSlots)));
    if (payers_[slot.number()].is_none()) return std::nullopt;
    return slot;
  }
  void Refund(Prng& prng) {
    const auto slot = AnySlot(prng);
    if (!slot) return;
    accounts_.charges().RefundSlot(*slot);
    At(payers_[slot->number()]).used_bytes -= charge_bytes_;
    payers_[slot->number()] = TenantId::None();
    // Somebody's written slot goes with it.
    const TenantId writer = AnyTenant(prng);
    for (auto& [epoch, slots] : At(writer).written) {
      if (slots == 0) continue;
      accounts_.charges().CountWritten(writer, epoch, -1);
      --slots;
      return;
    }
  }
  void MoveCharge(Prng& prng) {
    const auto slot = AnySlot(prng);
    const TenantId to = AnyTenant(prng);
    if (!slot) return;
    const TenantId from = payers_[slot->number()];
    if (from != to && At(to).used_bytes + charge_bytes_ > At(to).quota_bytes()) return;
    accounts_.charges().MoveSlot(*slot, to);
    payers_[slot->number()] = to;
    At(from).used_bytes -= charge_bytes_;
    At(to).used_bytes += charge_bytes_;
    At(to).peak_bytes = std::max(At(to).peak_bytes, At(to).used_bytes);
  }

  // A block that stands in a list keeps its account, and its place as long as the list is the same.
  void List(Prng& prng) {
    const BlockId block(static_cast<uint32_t>(prng.NextBelow(kBlocks)));
    const auto known = listed_.find(block);
    const TenantId account =
        known != listed_.end() ? known->second.account : At(AnyTenant(prng)).account;
    Evictable what;
    if (!prng.NextChance(5)) {
      what.listed = prng.NextChance(3) ? Listed::kSlots : Listed::kWhole;
      what.bytes = charge_bytes_;
      if (prng.NextChance(3)) what.twin_bytes = 100;
    }
    // More than the account holds cannot be evicted from it.
    const uint64_t others_bytes =
        EvictableBytes(account) - (known != listed_.end() ? known->second.what.bytes : 0);
    if (others_bytes + what.bytes > At(account).used_bytes) return;
    accounts_.order().List(block, account, what, {});
    if (what.listed == Listed::kNowhere) {
      listed_.erase(block);
      return;
    }
    NaiveListing& listing = listed_[block];
    if (listing.what.listed != what.listed) {
      listing.since = ++listings_;
      if (what.listed == Listed::kWhole) listing.listed_us = clock_.NowMicros();
    }
    listing.account = account;
    listing.what = what;
  }
  void Unlist(Prng& prng) {
    const BlockId block(static_cast<uint32_t>(prng.NextBelow(kBlocks)));
    switch (prng.NextBelow(3)) {
      case 0: accounts_.order().Unlist(block); break;
      case 1: accounts_.order().Remove(block, /*evicted=*/true); break;
      default: accounts_.order().Remove(block, /*evicted=*/false);
    }
    listed_.erase(block);
  }
  void Erase(Prng& prng) {
    const TenantId tenant = AnyTenant(prng);
    accounts_.Erase(tenant);
    ++At(tenant).epoch;
  }
  void CountPinned(Prng& prng) {
    const TenantId account = AnyTenant(prng);
    NaiveTenant& naive = At(account);
    const bool more = naive.pinned_blocks == 0 || prng.NextChance(2);
    accounts_.charges().CountPinned(account, more ? 1 : -1, more ? 70 : -70);
    naive.pinned_blocks += more ? 1 : -1;
    naive.pinned_bytes += more ? 70 : -70;
  }

  // What can be seen.

  // What goes first of those of an account (none: of all), unless `spared`.
  template <typename Spared>
  std::optional<BlockId> First(const Spared& spared) const {
    std::optional<BlockId> first;
    for (const auto& [block, listing] : listed_) {
      if (spared(listing)) continue;
      if (!first || listing.since < listed_.at(*first).since) first = block;
    }
    return first;
  }
  void ExpectVictim(const std::optional<Victim>& victim,
                    const std::optional<BlockId>& block) const {
    ASSERT_EQ(victim.has_value(), block.has_value());
    if (!victim) return;
    ASSERT_EQ(victim->block, *block);
    const Evictable& what = listed_.at(*block).what;
    const bool twins = what.listed == Listed::kWhole && what.twin_bytes > 0;
    ASSERT_EQ(victim->bytes, twins ? what.twin_bytes : what.bytes);
    ASSERT_EQ(victim->goes, twins                           ? Goes::kTwins
                            : what.listed == Listed::kWhole ? Goes::kWhole
                                                            : Goes::kSlots);
  }

  void Compare(Prng& prng) {
    size_t live = 0;
    accounts_.tenants().ForEach([&](TenantId) { ++live; });
    ASSERT_EQ(live, tenants_.size());
    ASSERT_EQ(accounts_.charges().ledger().used_bytes(), Charged());
    ASSERT_EQ(accounts_.charges().ledger().peak_bytes(), peak_bytes_);
    ASSERT_EQ(accounts_.tenants().floors_bytes(), Floors());
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (!payers_[i].is_none()) {
        ASSERT_EQ(accounts_.charges().payer(SlotId(i)), payers_[i]);
      }
    }
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const auto known = listed_.find(BlockId(i));
      ASSERT_EQ(accounts_.order().listed(BlockId(i)),
                known == listed_.end() ? Listed::kNowhere : known->second.what.listed);
    }
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      CompareTenant(TenantId(i), prng.NextBelow(10) * charge_bytes_);
    }
    ExpectVictim(accounts_.order().OldestVictim(),
                 First([](const NaiveListing&) { return false; }));
    ASSERT_FALSE(
        accounts_.tenants().Check(TenantId(static_cast<uint32_t>(tenants_.size()))).has_value());
    ASSERT_FALSE(accounts_.tenants().Find("nobody").has_value());
  }

  void CompareTenant(TenantId tenant, uint64_t wanted_bytes) {
    const NaiveTenant& naive = At(tenant);
    ASSERT_EQ(Must(accounts_.tenants().Find(naive.options.name)), tenant);
    ASSERT_EQ(accounts_.tenants().account_of(tenant), naive.account);
    ASSERT_EQ(accounts_.tenants().epoch(tenant), naive.epoch);
    ASSERT_EQ(accounts_.charges().account(tenant).quota_bytes(), naive.quota_bytes());
    ASSERT_EQ(accounts_.charges().account(tenant).capacity_bytes(),
              naive.quota_bytes() - naive.used_bytes);
    ASSERT_EQ(accounts_.order().evictable_bytes(tenant), EvictableBytes(tenant));
    const TenantStats stats = accounts_.stats(tenant);
    ASSERT_EQ(stats.bytes_used, naive.used_bytes);
    ASSERT_EQ(stats.bytes_peak, naive.peak_bytes);
    ASSERT_EQ(stats.evictable_bytes, EvictableBytes(tenant));
    ASSERT_EQ(stats.pinned_blocks, static_cast<uint64_t>(naive.pinned_blocks));
    ASSERT_EQ(stats.pinned_bytes, static_cast<uint64_t>(naive.pinned_bytes));
    ASSERT_EQ(stats.erased_total, naive.epoch);
    uint64_t stale = 0;
    for (const auto& [epoch, slots] : naive.written) {
      if (epoch != naive.epoch) stale += static_cast<uint64_t>(slots);
    }
    ASSERT_EQ(accounts_.charges().stale_slots(tenant), stale);
    ASSERT_EQ(accounts_.charges().PinLimit(tenant),
              std::min(capacity_.ledger_bytes - (Floors() - naive.options.floor_bytes),
                       naive.quota_bytes()));

    uint64_t whole = 0;
    for (const auto& [block, listing] : listed_) {
      if (listing.account == tenant && listing.what.listed == Listed::kWhole) ++whole;
    }
    ASSERT_EQ(accounts_.order().listed_whole(tenant), whole);
    const auto not_its = [&](const NaiveListing& listing) { return listing.account != tenant; };
    const auto first = First(not_its);
    ExpectVictim(accounts_.order().VictimOf(tenant), first);
    CompareVictimFor(tenant);
    CompareCapacity(tenant, wanted_bytes);

    std::optional<BlockId> expired;
    for (const auto& [block, listing] : listed_) {
      if (not_its(listing) || listing.what.listed != Listed::kWhole) continue;
      if (!expired || listing.since < listed_.at(*expired).since) expired = block;
    }
    const uint64_t ttl_us = naive.options.ttl_us;
    if (expired && (ttl_us == 0 || clock_.NowMicros() - listed_.at(*expired).listed_us < ttl_us)) {
      expired.reset();
    }
    ASSERT_EQ(accounts_.order().Expired(tenant), expired);
  }

  // The oldest of the first of each account, but of others' only what leaves them their floor.
  void CompareVictimFor(TenantId tenant) const {
    std::optional<BlockId> oldest;
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      const TenantId account(i);
      const auto first =
          First([&](const NaiveListing& listing) { return listing.account != account; });
      if (!first) continue;
      const Evictable& what = listed_.at(*first).what;
      const bool twins = what.listed == Listed::kWhole && what.twin_bytes > 0;
      const uint64_t bytes = twins ? what.twin_bytes : what.bytes;
      const bool leaves_floor = At(account).used_bytes >= At(account).options.floor_bytes + bytes;
      if (account != tenant && !leaves_floor) continue;
      if (!oldest || listed_.at(*first).since < listed_.at(*oldest).since) oldest = first;
    }
    ExpectVictim(accounts_.VictimFor(tenant), oldest);
  }

  // All blocks are of one size, so what can be had from others is whole blocks above their floors.
  void CompareCapacity(TenantId tenant, uint64_t wanted_bytes) const {
    const NaiveTenant& naive = At(tenant);
    uint64_t evictable = 0;
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      const NaiveTenant& other = tenants_[i];
      uint64_t bytes = 0;
      for (uint64_t left = EvictableBytes(TenantId(i)); left > 0; left -= charge_bytes_) {
        const bool leaves_floor =
            other.used_bytes >= bytes + charge_bytes_ + other.options.floor_bytes;
        if (TenantId(i) == tenant || leaves_floor) bytes += charge_bytes_;
      }
      evictable += bytes;
    }
    ASSERT_EQ(accounts_.EvictableFor(tenant), evictable);
    const uint64_t free_bytes = capacity_.ledger_bytes - Charged();
    const uint64_t quota_capacity = naive.quota_bytes() - naive.used_bytes;
    const uint64_t own_bytes = EvictableBytes(tenant);
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
  std::vector<NaiveTenant> tenants_;
  std::vector<TenantId> payers_ = std::vector<TenantId>(kSlots);  // by slot; none: free
  std::map<BlockId, NaiveListing> listed_;
  uint64_t listings_ = 0;
  uint64_t peak_bytes_ = 0;
};

RC_GTEST_PROP(AccountsProperty, AgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  LockStep both;
  for (const uint64_t seed : seeds) {
    Prng prng(seed);
    for (int i = 0; i < 4; ++i) {
      both.Step(prng);
      RC_ASSERT(!::testing::Test::HasFailure());
    }
  }
}

}  // namespace
}  // namespace quire::cache

// The order of eviction alone, in lock step with a naive one.
#include "cache/state/eviction_order.h"

#include <array>

#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/state/naive_order.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr std::array<uint64_t, 3> kTtls_us = {0, 150, 400};  // of each account

class EvictionOrderLockStep {
 public:
  EvictionOrderLockStep() {
    for (uint32_t i = 1; i < kTtls_us.size(); ++i) real_.AddAccount(TenantId(i), kTtls_us[i]);
  }

  void Step(Prng& prng) {
    real_.EndHold();
    const BlockId block = NaiveOrder::AnyBlock(prng);
    switch (prng.NextBelow(6)) {
      case 0:
      case 1:
      case 2: List(block, prng); break;
      case 3: naive_.Unlist(real_, block, prng); break;
      case 4: {
        const TenantId account(static_cast<uint32_t>(prng.NextBelow(kTtls_us.size())));
        const uint64_t bytes = prng.NextBelow(naive_.Bytes(account) + 1);
        real_.Withhold(account, bytes);
        ASSERT_EQ(real_.evictable_bytes(account), naive_.Bytes(account) - bytes);
        real_.GiveBack(account, bytes);
        break;
      }
      default: clock_.Advance(prng.NextBelow(100));
    }
    Compare();
  }

 private:
  void List(BlockId block, Prng& prng) {
    const auto known = naive_.listed().find(block);
    const TenantId account = known != naive_.listed().end()
                                 ? known->second.account
                                 : TenantId(static_cast<uint32_t>(prng.NextBelow(3)));
    Evictable what;
    if (!prng.NextChance(5)) {
      what.listed = prng.NextChance(3) ? Listed::kSlots : Listed::kWhole;
      what.bytes = 100 + prng.NextBelow(50);
      if (prng.NextChance(3)) what.twin_bytes = 60;
    }
    naive_.List(real_, block, account, what, clock_.NowMicros());
  }

  void Compare() const {
    for (uint32_t i = 0; i < NaiveOrder::kBlocks; ++i) {
      const auto known = naive_.listed().find(BlockId(i));
      const bool is_listed = known != naive_.listed().end();
      ASSERT_EQ(real_.listed(BlockId(i)), is_listed ? known->second.what.listed : Listed::kNowhere);
      const bool is_whole = is_listed && known->second.what.listed == Listed::kWhole;
      ASSERT_EQ(real_.unused_since_us(BlockId(i)),
                is_whole ? std::optional(known->second.listed_us) : std::nullopt);
    }
    naive_.ExpectVictim(real_.OldestVictim(),
                        naive_.First([](const NaiveOrder::Listing&) { return false; }));
    for (uint32_t i = 0; i < kTtls_us.size(); ++i) CompareAccount(TenantId(i));
  }
  void CompareAccount(TenantId account) const {
    const auto not_its = [&](const NaiveOrder::Listing& listing) {
      return listing.account != account;
    };
    const auto not_whole = [&](const NaiveOrder::Listing& listing) {
      return not_its(listing) || listing.what.listed != Listed::kWhole;
    };
    naive_.ExpectVictim(real_.VictimOf(account), naive_.FirstOf(account));
    // Of all but this account.
    naive_.ExpectVictim(
        real_.OldestVictim([&](TenantId other, const Victim&) { return other != account; }),
        naive_.First([&](const NaiveOrder::Listing& listing) { return !not_its(listing); }));
    const auto whole = naive_.First(not_whole);
    ASSERT_EQ(real_.WholeVictim(account), whole);
    const uint64_t ttl_us = kTtls_us[account.number()];
    const bool expired =
        whole && ttl_us > 0 && clock_.NowMicros() - naive_.listed().at(*whole).listed_us >= ttl_us;
    ASSERT_EQ(real_.Expired(account), expired ? whole : std::nullopt);
    ASSERT_EQ(real_.evictable_bytes(account), naive_.Bytes(account));
    uint64_t wholes = 0;
    uint64_t slots = 0;
    for (const auto& [block, listing] : naive_.listed()) {
      if (not_its(listing)) continue;
      ++(listing.what.listed == Listed::kWhole ? wholes : slots);
    }
    ASSERT_EQ(real_.listed_whole(account), wholes);
    ASSERT_EQ(real_.listed_slots(account), slots);
  }

  ManualClock clock_{1000};
  EvictionOrder real_{clock_, "lru"};
  NaiveOrder naive_;
};

RC_GTEST_PROP(EvictionOrderProperty, AgreesWithANaiveOne, (const std::vector<uint64_t>& seeds)) {
  EvictionOrderLockStep both;
  StepFromSeeds(both, seeds, 4);
}

}  // namespace
}  // namespace quire::cache

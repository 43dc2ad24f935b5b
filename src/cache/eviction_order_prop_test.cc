// The order of eviction alone, in lock step with a naive one: a list of what was listed when.
#include "cache/eviction_order.h"

// gtest before rapidcheck
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <map>

#include "base/prng.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kBlocks = 30;
constexpr std::array<uint64_t, 3> kTtls_us = {0, 150, 400};  // of each account

struct NaiveListing {
  TenantId account{};
  Evictable what;
  uint64_t since = 0;      // a count of listings
  uint64_t listed_us = 0;  // whole, by the clock
};

class LockStep {
 public:
  LockStep() {
    for (uint32_t i = 1; i < kTtls_us.size(); ++i) real_.AddAccount(TenantId(i), kTtls_us[i]);
  }

  void Step(Prng& prng) {
    real_.EndHold();
    const BlockId block(static_cast<uint32_t>(prng.NextBelow(kBlocks)));
    switch (prng.NextBelow(6)) {
      case 0:
      case 1:
      case 2: List(block, prng); break;
      case 3: Unlist(block, prng); break;
      case 4: {
        const TenantId account(static_cast<uint32_t>(prng.NextBelow(kTtls_us.size())));
        const uint64_t bytes = prng.NextBelow(Bytes(account) + 1);
        real_.Withhold(account, bytes);
        ASSERT_EQ(real_.evictable_bytes(account), Bytes(account) - bytes);
        real_.GiveBack(account, bytes);
        break;
      }
      default: clock_.Advance(prng.NextBelow(100));
    }
    Compare();
  }

 private:
  uint64_t Bytes(TenantId account) const {
    uint64_t bytes = 0;
    for (const auto& [block, listing] : listed_) {
      if (listing.account == account) bytes += listing.what.bytes;
    }
    return bytes;
  }
  // What goes first, unless `spared`.
  template <typename Spared>
  std::optional<BlockId> First(const Spared& spared) const {
    std::optional<BlockId> first;
    for (const auto& [block, listing] : listed_) {
      if (spared(listing)) continue;
      if (!first || listing.since < listed_.at(*first).since) first = block;
    }
    return first;
  }

  // A block that stands in a list keeps its account, and its place as long as the list is the same.
  void List(BlockId block, Prng& prng) {
    const auto known = listed_.find(block);
    const TenantId account = known != listed_.end()
                                 ? known->second.account
                                 : TenantId(static_cast<uint32_t>(prng.NextBelow(3)));
    Evictable what;
    if (!prng.NextChance(5)) {
      what.listed = prng.NextChance(3) ? Listed::kSlots : Listed::kWhole;
      what.bytes = 100 + prng.NextBelow(50);
      if (prng.NextChance(3)) what.twin_bytes = 60;
    }
    real_.List(block, account, what, {});
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
  void Unlist(BlockId block, Prng& prng) {
    switch (prng.NextBelow(3)) {
      case 0: real_.Unlist(block); break;
      case 1: real_.Remove(block, /*evicted=*/true); break;
      default: real_.Remove(block, /*evicted=*/false);
    }
    listed_.erase(block);
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
  void Compare() const {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const auto known = listed_.find(BlockId(i));
      const bool is_listed = known != listed_.end();
      ASSERT_EQ(real_.listed(BlockId(i)), is_listed ? known->second.what.listed : Listed::kNowhere);
      const bool is_whole = is_listed && known->second.what.listed == Listed::kWhole;
      ASSERT_EQ(real_.unused_since_us(BlockId(i)),
                is_whole ? std::optional(known->second.listed_us) : std::nullopt);
    }
    ExpectVictim(real_.OldestVictim(), First([](const NaiveListing&) { return false; }));
    for (uint32_t i = 0; i < kTtls_us.size(); ++i) CompareAccount(TenantId(i));
  }
  void CompareAccount(TenantId account) const {
    const auto not_its = [&](const NaiveListing& listing) { return listing.account != account; };
    const auto not_whole = [&](const NaiveListing& listing) {
      return not_its(listing) || listing.what.listed != Listed::kWhole;
    };
    ExpectVictim(real_.VictimOf(account), First(not_its));
    // Of all but this account.
    ExpectVictim(
        real_.OldestVictim([&](TenantId other, const Victim&) { return other != account; }),
        First([&](const NaiveListing& listing) { return !not_its(listing); }));
    const auto whole = First(not_whole);
    ASSERT_EQ(real_.WholeVictim(account), whole);
    const uint64_t ttl_us = kTtls_us[account.number()];
    const bool expired =
        whole && ttl_us > 0 && clock_.NowMicros() - listed_.at(*whole).listed_us >= ttl_us;
    ASSERT_EQ(real_.Expired(account), expired ? whole : std::nullopt);
    ASSERT_EQ(real_.evictable_bytes(account), Bytes(account));
    uint64_t wholes = 0;
    uint64_t slots = 0;
    for (const auto& [block, listing] : listed_) {
      if (not_its(listing)) continue;
      ++(listing.what.listed == Listed::kWhole ? wholes : slots);
    }
    ASSERT_EQ(real_.listed_whole(account), wholes);
    ASSERT_EQ(real_.listed_slots(account), slots);
  }

  ManualClock clock_{1000};
  EvictionOrder real_{clock_, "lru"};
  std::map<BlockId, NaiveListing> listed_;
  uint64_t listings_ = 0;
};

RC_GTEST_PROP(EvictionOrderProperty, AgreesWithANaiveOne, (const std::vector<uint64_t>& seeds)) {
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

// A naive order of eviction, shared by the tests of the real one and of the accounts.
#ifndef QUIRE_CACHE_STATE_NAIVE_ORDER_H_
#define QUIRE_CACHE_STATE_NAIVE_ORDER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>

#include "base/prng.h"
#include "cache/state/eviction_order.h"

namespace quire::cache {

/// The listings of all accounts in one order, least recently listed first.
class NaiveOrder {
 public:
  static constexpr uint32_t kBlocks = 30;

  struct Listing {
    TenantId account{};
    Evictable what;
    uint64_t since = 0;      // a count of listings
    uint64_t listed_us = 0;  // whole, by the clock
  };

  static BlockId AnyBlock(Prng& prng) {
    return BlockId(static_cast<uint32_t>(prng.NextBelow(kBlocks)));
  }

  const std::map<BlockId, Listing>& listed() const { return listed_; }
  uint64_t Bytes(TenantId account) const {
    uint64_t bytes = 0;
    for (const auto& [block, listing] : listed_) {
      if (listing.account == account) bytes += listing.what.bytes;
    }
    return bytes;
  }

  // Makes the same call on both.

  /// A block that stands in a list keeps its account, and its place as long as the list is the
  /// same.
  void List(EvictionOrder& real, BlockId block, TenantId account, const Evictable& what,
            uint64_t now_us) {
    real.List(block, account, what, {});
    if (what.listed == Listed::kNowhere) {
      listed_.erase(block);
      return;
    }
    Listing& listing = listed_[block];
    if (listing.what.listed != what.listed) {
      listing.since = ++listings_;
      if (what.listed == Listed::kWhole) listing.listed_us = now_us;
    }
    listing.account = account;
    listing.what = what;
  }
  /// Unlists a block in one of the ways.
  void Unlist(EvictionOrder& real, BlockId block, Prng& prng) {
    switch (prng.NextBelow(3)) {
      case 0: real.Unlist(block); break;
      case 1: real.Remove(block, /*evicted=*/true); break;
      default: real.Remove(block, /*evicted=*/false);
    }
    listed_.erase(block);
  }

  // Compares all visible state.

  /// The first victim that is not spared(listing).
  template <typename Spared>
  std::optional<BlockId> First(const Spared& spared) const {
    std::optional<BlockId> first;
    for (const auto& [block, listing] : listed_) {
      if (spared(listing)) continue;
      if (!first || listing.since < listed_.at(*first).since) first = block;
    }
    return first;
  }
  /// Of an account.
  std::optional<BlockId> FirstOf(TenantId account) const {
    return First([&](const Listing& listing) { return listing.account != account; });
  }
  bool GoesBefore(BlockId a, BlockId b) const { return listed_.at(a).since < listed_.at(b).since; }
  /// What is evicted when that block is the victim: its twins before itself.
  Victim VictimAt(BlockId block) const {
    const Evictable& what = listed_.at(block).what;
    if (what.listed != Listed::kWhole)
      return {.block = block, .goes = Goes::kSlots, .bytes = what.bytes};
    if (what.twin_bytes > 0) {
      return {.block = block, .goes = Goes::kTwins, .bytes = what.twin_bytes};
    }
    return {.block = block, .goes = Goes::kWhole, .bytes = what.bytes};
  }
  void ExpectVictim(const std::optional<Victim>& victim,
                    const std::optional<BlockId>& block) const {
    ASSERT_EQ(victim.has_value(), block.has_value());
    if (!victim) return;
    const Victim expected = VictimAt(*block);
    ASSERT_EQ(victim->block, expected.block);
    ASSERT_EQ(victim->bytes, expected.bytes);
    ASSERT_EQ(victim->goes, expected.goes);
  }

 private:
  std::map<BlockId, Listing> listed_;
  uint64_t listings_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_NAIVE_ORDER_H_

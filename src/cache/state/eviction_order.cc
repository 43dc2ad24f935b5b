#include "cache/state/eviction_order.h"

#include <algorithm>
#include <utility>

namespace quire::cache {

EvictionOrder::EvictionOrder(const Clock& clock, std::string_view policy, bool has_ladder)
    : clock_(clock),
      accounts_(std::make_shared<Account>(Account{.lists = EvictionLists(policy, has_ladder)})) {
  AddAccount(kDefaultTenant, /*ttl_us=*/0);
}

void EvictionOrder::AddAccount(TenantId account, uint64_t ttl_us) {
  accounts_.Put(account, std::make_shared<Account>(Account{
                             .lists = accounts_.gone().lists.MakeSiblings(), .ttl_us = ttl_us}));
}

void EvictionOrder::SetHistory(uint64_t bytes_each) {
  accounts_.ForEach(
      [&](TenantId, const Account& account) { account.lists.whole->SetHistory(bytes_each); });
}

void EvictionOrder::List(BlockId block, TenantId account, const Evictable& what,
                         evict::BlockFacts facts) {
  ReserveBlocks(block.number() + 1);
  Listing& listing = listings_[block.number()];
  if (listing.what.listed != what.listed) {
    Leave(block, /*stays=*/true, /*evicted=*/false);
    Account& owner = accounts_[account];
    if (what.listed != Listed::kNowhere) {
      if (listing.retained_until_us > 0) {
        facts.priority = listing.priority;
        // In milliseconds, rounded up; the largest value never ends.
        const uint64_t until_us = listing.retained_until_us;
        facts.expires_ms =
            until_us == UINT64_MAX ? 0 : until_us / 1000 + (until_us % 1000 > 0 ? 1 : 0);
      }
      (what.listed == Listed::kWhole ? owner.lists.whole : owner.lists.passed)->Add(block, facts);
      listing.account = account;
      listing.stamp = next_stamp_++;
    }
    listing.what.listed = what.listed;
    if (what.listed == Listed::kWhole) {
      if (owner.ttl_us > 0) owner.lists.aging->Add(block, {});
      // Many blocks are released at once: the clock is read for the first of them.
      if (!hold_us_) hold_us_ = clock_.NowMicros();
      listing.listed_us = *hold_us_;
    }
  }
  ListTwins(accounts_[account], block, listing.what, what);
  accounts_[account].evictable_bytes += what.bytes - listing.what.bytes;
  listing.what = what;
}

void EvictionOrder::ListTwins(Account& owner, BlockId block, const Evictable& before,
                              const Evictable& now) {
  if (owner.lists.twinned == nullptr) return;
  if (before.is_twinned()) owner.twin_bytes -= before.twin_bytes;
  if (now.is_twinned()) owner.twin_bytes += now.twin_bytes;
  if (before.is_twinned() == now.is_twinned()) return;
  if (now.is_twinned()) return owner.lists.twinned->Add(block, {});
  owner.lists.twinned->Remove(block);
}

void EvictionOrder::Leave(BlockId block, bool stays, bool evicted) {
  Listing& listing = listings_[block.number()];
  if (listing.what.listed == Listed::kNowhere) return;
  Account& owner = accounts_[listing.account];
  if (listing.what.listed == Listed::kWhole) {
    if (stays) {
      owner.lists.whole->Remove(block);
    } else if (evicted) {
      owner.lists.whole->Evict(block);
    } else {
      owner.lists.whole->Forget(block);
    }
    if (owner.ttl_us > 0) owner.lists.aging->Remove(block);
  } else {
    owner.lists.passed->Remove(block);
  }
  ListTwins(owner, block, listing.what, {});
  owner.evictable_bytes -= listing.what.bytes;
  listing.what = {};
}

void EvictionOrder::Unlist(BlockId block) {
  if (block.number() < listings_.size()) Leave(block, /*stays=*/true, /*evicted=*/false);
}

void EvictionOrder::Remove(BlockId block, bool evicted) {
  if (block.number() >= listings_.size()) return;
  Leave(block, /*stays=*/false, evicted);
  listings_[block.number()] = {};
}

std::optional<Victim> EvictionOrder::VictimOf(TenantId account) const {
  const Account& owner = accounts_[account];
  const EvictionLists& lists = owner.lists;
  if (evict::TwinsGoFirst(owner.twin_bytes, owner.evictable_bytes)) {
    const BlockId twinned = *lists.twinned->Victim();
    const Listing& listing = listings_[twinned.number()];
    return Victim{.block = twinned,
                  .goes = Goes::kTwins,
                  .stamp = listing.stamp,
                  .bytes = listing.what.twin_bytes};
  }
  std::optional<Victim> victim;
  if (const auto whole = lists.whole->Victim()) {
    const Listing& listing = listings_[whole->number()];
    const bool twins = listing.what.is_twinned();
    victim = {.block = *whole,
              .goes = twins ? Goes::kTwins : Goes::kWhole,
              .stamp = listing.stamp,
              .bytes = twins ? listing.what.twin_bytes : listing.what.bytes};
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

// In order of last use, whatever the policy would choose: after the first block that has not
// expired all others are younger.
std::optional<BlockId> EvictionOrder::Expired(TenantId account) const {
  const Account& owner = accounts_[account];
  if (owner.ttl_us == 0) return std::nullopt;
  const auto victim = owner.lists.aging->Victim();
  if (!victim) return std::nullopt;
  const uint64_t age_us = clock_.NowMicros() - listings_[victim->number()].listed_us;
  if (age_us < owner.ttl_us) return std::nullopt;
  return victim;
}

void EvictionOrder::Retain(BlockId block, uint8_t priority, uint64_t until_us) {
  ReserveBlocks(block.number() + 1);
  Listing& listing = listings_[block.number()];
  const bool stands = listing.retained_until_us > clock_.NowMicros();
  listing.priority = stands ? std::max(listing.priority, priority) : priority;
  listing.retained_until_us = stands ? std::max(listing.retained_until_us, until_us) : until_us;
}

void EvictionOrder::Advance() {
  const uint64_t now_us = clock_.NowMicros();
  accounts_.ForEach(
      [&](TenantId, const Account& account) { account.lists.whole->Advance(now_us / 1000); });
}

}  // namespace quire::cache

// What the cache's lock guards: the three state objects, and what the verbs on them share.
#ifndef QUIRE_CACHE_STATE_STATE_H_
#define QUIRE_CACHE_STATE_STATE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/state/accounts.h"
#include "cache/state/directory.h"
#include "cache/state/pins.h"
#include "cache/state/slots.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "quire/stats.h"

namespace quire::cache {

/// Where a sequence's blocks are published: below the root of its identity.
struct PublishLocation {
  Digest root_key{};
  std::shared_ptr<const Domain> domain;  // keys the chain
  TenantId tenant = kDefaultTenant;
  uint32_t epoch = 0;  // of the tenant when the plan was made; a later one: it was erased since
  // Of its account in the store then: what is published here is written with it, and a later
  // erasure by whatever cache keeps it out.
  uint64_t below_epoch = 0;
  bool may_evict = true;  // room may be made for it

  Asker asker() const { return {.tenant = tenant, .may_evict = may_evict}; }
};

/// Blocks that are read at once at most: enough that a copy to the host is worth waiting for.
inline constexpr uint32_t kReadingMax = 8;

/// Slots of blocks whose bytes are read without the lock and without a hold, to be verified,
/// written or moved: who evicts a block does not wait, but its slots are free only when they have
/// been read.
struct Reading {
  uint32_t count = 0;  // blocks; 0: nothing is being read
  std::array<PerClass<SlotId>, kReadingMax> slots{};
  PerClass<SlotId> to{};         // of a move, of one block: where they are copied to
  std::vector<SlotId> parked{};  // of `slots`, those that nobody holds any more

  void Add(const PerClass<SlotId>& of_block) { slots[count++] = of_block; }
  void Remove(const PerClass<SlotId>& of_block) {
    *std::find(slots.begin(), slots.begin() + count, of_block) = slots[count - 1];
    --count;
  }
  bool Has(SlotId slot) const {
    return std::any_of(slots.begin(), slots.begin() + count, [slot](const auto& of_block) {
      return std::ranges::find(of_block, slot) != of_block.end();
    });
  }
};

/// A block that is out of use, and with it all that continues it, piece by piece: each block is
/// marked before those after it, and goes when they are done, unless somebody leases it. Nothing is
/// published after a block that is marked, so nothing is missed.
struct Marking {
  BlockId root{};
  BlockId at{};         // what is next; it moves on if that goes
  bool leaves = false;  // what continues it is done
  BlockState block_state = BlockState::kDamaged;
  uint64_t* marked = nullptr;  // counts them, where somebody waits until it is done
};

/// Slots that a holder let go of while a device may still read them: held until the fence is done.
struct Fenced {
  std::shared_ptr<Fence> fence;
  std::vector<SlotId> slots{};  // in token order
};

/// Threads:  the caller holds the cache's lock
/// Lifetime: what the references name must outlive it
struct State {
  const SlotClasses& classes;
  const Clock& clock;
  Slots& slots;
  Directory directory;
  Accounts accounts;
  Pins pins{};
  std::vector<Marking> markings{};  // the last one goes on first
  bool has_store = false;           // what is published is written below
  // Blocks that were handed out and that the store should have. Never longer than it was reserved
  // for: when many are used at once, the store hears of the first ones.
  std::vector<BlockId> used_below{};
  uint64_t empty_max = 0;       // blocks without any bytes that the charges pay for
  uint64_t sequence_bytes = 0;  // charged for the bookkeeping of sequences
  Reading reading{};
  // Slots that nobody holds, with bytes that must be gone before anyone else gets them: zeroed
  // without the lock, and charged until they are free.
  std::vector<SlotId> draining{};
  std::vector<Fenced> fenced{};  // oldest first
  CacheStats counters{};         // the *_total fields and lookups

  TenantId account_of(const PublishLocation& location) const {
    return accounts.tenants().account_of(location.tenant);
  }
  /// Room that was made is not there yet: slots have to be drained or read first.
  bool IsWaiting() const { return !draining.empty() || !reading.parked.empty(); }
  /// What verbs left to be done in holds of its own: SettleSome.
  bool has_work() const {
    return directory.leases().has_deferred() || !markings.empty() || pins.is_ending();
  }
  /// What a tenant did in this epoch was erased since.
  bool IsStale(TenantId tenant, uint32_t epoch) const {
    return epoch != accounts.tenants().epoch(tenant);
  }
  /// The same of a plan's tenant.
  bool IsStale(const PublishLocation& location) const {
    return IsStale(location.tenant, location.epoch);
  }
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_STATE_H_

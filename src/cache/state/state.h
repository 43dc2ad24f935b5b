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
  // The store's epoch of the account at that time: blocks published here are written with it, and a
  // later erasure by any cache removes them.
  uint64_t below_epoch = 0;
  bool may_evict = true;   // whether blocks may be evicted for it
  bool announced = false;  // whether followers are told of its blocks (docs/events.md, Tenants)

  Asker asker() const { return {.tenant = tenant, .may_evict = may_evict}; }
};

/// Most blocks that are read at once: enough that a copy to the host is worth waiting for.
inline constexpr uint32_t kReadingMax = 8;

/// Slots of blocks whose bytes are read without the lock and without a reference, to be verified,
/// written or moved. Evicting such a block does not wait, but its slots are free only after the
/// read.
struct Reading {
  uint32_t count = 0;  // blocks; 0: nothing is being read
  std::array<PerClass<SlotId>, kReadingMax> slots{};
  PerClass<SlotId> to{};         // of a move, of one block: where they are copied to
  std::vector<SlotId> parked{};  // slots among `slots` that have no holder any more

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

/// A block that is taken out of use with all its descendants, piece by piece: each block is marked
/// before its descendants, and leaves the cache after them, unless it is leased. Nothing is
/// published after a marked block, so no descendant is missed.
struct Marking {
  BlockId root{};
  BlockId at{};         // the next block; moves on if that block goes
  bool leaves = false;  // whether its descendants are done
  BlockState block_state = BlockState::kDamaged;
  uint64_t* marked = nullptr;  // counts marked blocks for a caller that waits; else null
};

/// Slots that a holder released while a device may still read them: their references stay until the
/// fence is done.
struct Fenced {
  std::shared_ptr<Fence> fence;
  std::vector<SlotId> slots{};  // in token order
};

/// Threads:  the caller holds the cache's lock
/// Lifetime: the objects of the references must outlive it
struct State {
  const SlotClasses& classes;
  const Clock& clock;
  Slots& slots;
  Directory directory;
  Accounts accounts;
  Pins pins{};
  std::vector<Marking> markings{};  // the last one continues first
  bool has_store = false;           // whether published blocks are written to a store
  // Blocks that were handed out and that the store should have. Bounded by its capacity: when many
  // are used at once, the store is told of the first ones.
  std::vector<BlockId> used_below{};
  uint64_t empty_max = 0;       // blocks without bytes that the charges pay for
  uint64_t sequence_bytes = 0;  // charged for the bookkeeping of sequences
  Reading reading{};
  // Slots without holders whose bytes must be zeroed before another tenant gets them: zeroed
  // without the lock, and charged until they are free.
  std::vector<SlotId> draining{};
  std::vector<Fenced> fenced{};  // oldest first
  CacheStats counters{};         // the *_total fields and lookups

  TenantId account_of(const PublishLocation& location) const {
    return accounts.tenants().account_of(location.tenant);
  }
  /// Whether evicted slots are not free yet, because they must be drained or read first.
  bool IsWaiting() const { return !draining.empty() || !reading.parked.empty(); }
  /// Whether verbs left work for later holds of the lock: SettleSome.
  bool has_work() const {
    return directory.leases().has_deferred() || !markings.empty() || pins.is_ending();
  }
  /// Whether the tenant was erased after this epoch.
  bool IsStale(TenantId tenant, uint32_t epoch) const {
    return epoch != accounts.tenants().epoch(tenant);
  }
  /// The same for the tenant of a location.
  bool IsStale(const PublishLocation& location) const {
    return IsStale(location.tenant, location.epoch);
  }
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_STATE_H_

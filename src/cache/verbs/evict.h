// Verbs that make room, and that take blocks out of the cache.
#ifndef QUIRE_CACHE_VERBS_EVICT_H_
#define QUIRE_CACHE_VERBS_EVICT_H_

#include <cstdint>
#include <vector>

#include "cache/state/locked_state.h"

namespace quire::cache {

/// How many bytes must be free for a request: those that it needs, and those that are evicted in
/// advance.
struct CapacityWanted {
  uint64_t of_quota = 0;
  uint64_t of_budget = 0;  // set after the quota has its share
  uint64_t bytes = 0;      // 0: nothing may be evicted
};
/// The capacity to free for `bytes` more, which fit (Accounts::CheckCapacity).
CapacityWanted WantCapacity(State& state, const Asker& asker, uint64_t bytes);
/// Evicts what is wanted, or as much of it as one hold may, or until evicted slots are not free yet
/// (State::IsWaiting). False: call again in another hold.
bool FreeCapacity(State& state, const Asker& asker, CapacityWanted& wanted);
/// Makes room in the account of a location for slots of its tenant, by evicting old blocks of the
/// account. False: there is no room.
bool FreeCapacityInAccount(State& state, const PublishLocation& location, uint64_t bytes);
/// Evicts the least recent block of all, or some of its slots. False: there is none.
bool EvictOldest(State& state);
/// Evicts until a smaller budget pays for all slots in use, which is known to be possible; or as
/// much as one hold may, or until evicted slots are not free yet. False: call again.
bool EvictDownTo(State& state, uint64_t bytes, uint64_t empty_max);
/// Evicts unleased blocks of an account until it has no more than `bytes`; or as much as one hold
/// may, or until evicted slots are not free yet. False: call again.
bool EvictAccountDownTo(State& state, TenantId account, uint64_t bytes);
/// Evicts blocks of an account that were not used for its ttl. True: there may be more.
bool Expire(State& state, TenantId account);
/// Ends pins whose time is over, and tells policies the time. True: blocks that such pins kept can
/// be evicted in a later hold, after the cache's deferred work.
bool LetTimePass(State& state);
/// Does some of the work that verbs left. True: there may be more.
bool SettleSome(State& state);

/// Removes a block without leases from the cache, and blocks before it that are useless without it.
/// `reason` is the answer of later lookups, unless the block's state says more.
void Drop(State& state, BlockId block, MissReason reason);

// With the lock, in several holds.

/// As Cache::Evict.
uint64_t Evict(LockedState& cache, uint64_t blocks);
/// The same in as many holds as it takes.
void LetTimePass(LockedState& cache);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_EVICT_H_

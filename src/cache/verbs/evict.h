// What goes when room is needed: verbs that make room, and that take blocks out of the cache.
#ifndef QUIRE_CACHE_VERBS_EVICT_H_
#define QUIRE_CACHE_VERBS_EVICT_H_

#include <cstdint>
#include <vector>

#include "cache/state/locked_state.h"

namespace quire::cache {

/// How much must be free for a request: what it needs, and what is evicted in advance.
struct CapacityWanted {
  uint64_t of_quota = 0;
  uint64_t of_budget = 0;  // known when the quota has its share
  uint64_t bytes = 0;      // 0: nothing may be evicted
};
/// What `bytes` more ask for, if they fit at all.
/// Errors: as Accounts::CheckCapacity
Result<CapacityWanted> WantCapacity(State& state, const Asker& asker, uint64_t bytes);
/// Evicts what is wanted, or as much of it as one hold may, or until what went is not free yet
/// (State::IsWaiting). False: ask again in another hold.
bool FreeCapacity(State& state, const Asker& asker, CapacityWanted& wanted);
/// Whether the account of a place has room for slots of its tenant, at the expense of its own old
/// blocks.
bool FreeCapacityInAccount(State& state, const PublishLocation& location, uint64_t bytes);
/// Evicts one block, or slots of one: the least recent of all. False: there is none.
bool EvictOldest(State& state);
/// Evicts until no more is in use than a smaller budget pays for, which is known to be possible; or
/// as much of that as one hold may, or until it has to wait for what went. False: ask again.
bool EvictDownTo(State& state, uint64_t bytes, uint64_t empty_max);
/// Evicts what is not needed of an account until it has no more than `bytes`, or as much of that as
/// one hold may, or until it has to wait for what went. False: ask again.
bool EvictAccountDownTo(State& state, TenantId account, uint64_t bytes);
/// What nobody in the account has used for its ttl goes. True: there may be more of it.
bool Expire(State& state, TenantId account);
/// Ends the pins that are over, and tells policies that go by time how late it is. True: what such
/// pins kept is to be had in a later hold, when the cache's work is done.
bool LetTimePass(State& state);
/// Does some of what verbs left to do. True: there may be more of it.
bool SettleSome(State& state);

/// A block that nobody leases leaves the cache, and those before it that are of no use without it.
/// `reason` is what later lookups will hear, unless the block's standing says more.
void Drop(State& state, BlockId block, MissReason reason);

// In holds of their own.

/// As Cache::Evict.
uint64_t Evict(LockedState& cache, uint64_t blocks);
/// As with State, until there is nothing more that such pins kept.
void LetTimePass(LockedState& cache);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_EVICT_H_

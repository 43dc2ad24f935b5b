// Taking slots for sequences: verbs under the lock. Everything is checked before anything is taken.
#ifndef QUIRE_CACHE_VERBS_ROOM_H_
#define QUIRE_CACHE_VERBS_ROOM_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/state/state.h"

namespace quire::cache {

/// Takes slots for which there is room, as many as the lists are long, and metadata bytes: all, or
/// nothing where others have taken some of a shared budget. Slots with bytes of another tenant must
/// be zeroed before they are handed out.
/// Errors: kNoSpace without a message. std::bad_alloc: nothing changes
Result<void> TakeSlots(State& state, const PublishLocation& location, uint64_t metadata_bytes,
                       PerClass<std::vector<SlotId>>& slots, std::vector<SlotId>& to_zero);
/// The same of consecutive slots that follow those of `run`, or any if that is empty.
/// Errors: kNoSpace; as Slots::TakeRun
Result<void> TakeRun(State& state, const PublishLocation& location, std::span<const SlotId> run,
                     uint64_t count, PerClass<std::vector<SlotId>>& added,
                     std::vector<SlotId>& to_zero);

/// Counts a refused request; an error without a message is the budget's.
void CountRefusal(State& state, const PublishLocation& location, const PerClass<uint64_t>& counts,
                  Error& error);

/// Whether a sequence of `tokens` tokens fits when it is alone in the cache and in its tenant's
/// quota.
Result<void> CheckCanFit(State& state, const PublishLocation& location, uint64_t tokens,
                         uint64_t blocks, uint64_t bytes);
/// Bytes that leases on blocks [begin, end) of a path will take from the evictable bytes of its
/// account.
uint64_t EvictableBytesOf(const State& state, std::span<const BlockId> path, uint64_t begin,
                          uint64_t end);
/// How full it is, for messages.
std::string CapacityMessage(const State& state, const PublishLocation& location,
                            const PerClass<uint64_t>& counts);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_ROOM_H_

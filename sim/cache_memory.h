// What lies in the memory of caches, whoever it belongs to.
#ifndef QUIRE_SIM_CACHE_MEMORY_H_
#define QUIRE_SIM_CACHE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "cache/core.h"
#include "quire/cache.h"

namespace quire::sim {

/// The bytes of the slots that nobody holds, one after the other.
inline std::vector<std::byte> BytesOfFreeSlots(Cache& cache) {
  const cache::LockedState& state = static_cast<cache::Core&>(cache).state();
  const cache::Slots& slots = state.slots();
  std::vector<SlotId> free;
  uint64_t bytes = 0;
  for (uint32_t number = 0; number < slots.writers().end(); ++number) {
    const SlotId slot(number);
    if (slots.IsBeyondEnd(slot) || slots.references(slot) > 0) continue;
    free.push_back(slot);
    bytes += state.classes().slot_bytes(state.classes().ClassOf(slot));
  }
  std::vector<std::byte> all(bytes);
  std::byte* next = all.data();
  for (const SlotId slot : free) {
    slots.CopyOut(slot, next);
    next += state.classes().slot_bytes(state.classes().ClassOf(slot));
  }
  QUIRE_CHECK(slots.ops().SynchronizeCopies(CopyWay::kOut).has_value());
  return all;
}

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_MEMORY_H_

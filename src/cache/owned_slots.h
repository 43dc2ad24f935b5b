// Slots between their allocation and their owner: they go back unless somebody takes them.
#ifndef QUIRE_CACHE_OWNED_SLOTS_H_
#define QUIRE_CACHE_OWNED_SLOTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "cache/reach.h"
#include "quire/identity.h"

namespace quire::cache {

class LockedState;

/// Move-only holder of slots of every class, one reference each. Who puts them into lists of its
/// own calls Disown once nothing can fail any more: whatever is thrown before lets go of them.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it
class OwnedSlots {
 public:
  OwnedSlots() = default;
  OwnedSlots(LockedState& cache, PerClass<std::vector<SlotId>> slots)
      : cache_(&cache), slots_(std::move(slots)) {}
  OwnedSlots(OwnedSlots&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), slots_(std::move(other.slots_)) {}
  OwnedSlots& operator=(OwnedSlots&& other) noexcept;
  OwnedSlots(const OwnedSlots&) = delete;
  OwnedSlots& operator=(const OwnedSlots&) = delete;
  ~OwnedSlots() { Release(); }

  const std::vector<SlotId>& operator[](uint32_t slot_class) const { return slots_[slot_class]; }

  /// Takes over another's, of the same cache. Nothing changes if memory runs out.
  void Add(OwnedSlots&& more);
  /// Drops the reference of every slot.
  void Release();
  /// Somebody else has them now.
  void Disown() noexcept { cache_ = nullptr; }

 private:
  LockedState* cache_ = nullptr;  // null: they are another's
  PerClass<std::vector<SlotId>> slots_{};
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_OWNED_SLOTS_H_

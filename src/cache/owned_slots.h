// Slots between their allocation and their owner: they go back unless somebody takes them.
#ifndef QUIRE_CACHE_OWNED_SLOTS_H_
#define QUIRE_CACHE_OWNED_SLOTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "cache/reach.h"
#include "quire/identity.h"

namespace quire::cache {

class Core;

/// Move-only holder of slots of every class, one reference each. Who puts them into lists of its
/// own calls Disown once nothing can fail any more: whatever is thrown before lets go of them.
///
/// Threads:  one at a time
/// Lifetime: the core must outlive it
class OwnedSlots {
 public:
  OwnedSlots() = default;
  OwnedSlots(Core& core, PerClass<std::vector<SlotId>> slots)
      : core_(&core), slots_(std::move(slots)) {}
  OwnedSlots(OwnedSlots&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), slots_(std::move(other.slots_)) {}
  OwnedSlots& operator=(OwnedSlots&& other) noexcept;
  OwnedSlots(const OwnedSlots&) = delete;
  OwnedSlots& operator=(const OwnedSlots&) = delete;
  ~OwnedSlots() { Release(); }

  const std::vector<SlotId>& operator[](uint32_t slot_class) const { return slots_[slot_class]; }

  /// Takes over another's, of the same core. Nothing changes if memory runs out.
  void Add(OwnedSlots&& more);
  /// Drops the reference of every slot.
  void Release();
  /// Somebody else has them now.
  void Disown() noexcept { core_ = nullptr; }

 private:
  Core* core_ = nullptr;  // null: they are another's
  PerClass<std::vector<SlotId>> slots_{};
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_OWNED_SLOTS_H_

// The tenant whose bytes are in each slot.
#ifndef QUIRE_CACHE_STATE_SLOT_WRITERS_H_
#define QUIRE_CACHE_STATE_SLOT_WRITERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/identity.h"

namespace quire::cache {

/// The writer of a slot is the tenant that took it last. It stays the writer when the slot is free,
/// until the slot is zeroed: no other tenant may get the slot with those bytes.
///
/// Threads: not synchronised; the caller holds its lock
class SlotWriters {
 public:
  struct Writer {
    TenantId tenant{};   // none: no tenant has written to it, or it was zeroed since
    uint32_t epoch = 0;  // of the tenant when it took the slot
    bool operator==(const Writer&) const = default;
  };

  /// Slots that a writer was ever noted for have lower numbers.
  uint32_t end() const { return static_cast<uint32_t>(writers_.size()); }
  /// Takes memory for slots with lower numbers than this.
  void Reserve(uint32_t slots_end) {
    if (slots_end > writers_.size()) writers_.resize(slots_end);
  }

  const Writer& of(SlotId slot) const { return writers_[slot.number()]; }
  /// Sets the next writer of a slot that was just taken. True: the slot has bytes of another writer
  /// and must be zeroed before it is handed out.
  bool Claim(SlotId slot, Writer writer) {
    const Writer before = std::exchange(writers_[slot.number()], writer);
    return !before.tenant.is_none() && before != writer;
  }
  /// The slot was zeroed: it has no writer.
  void Forget(SlotId slot) { writers_[slot.number()] = {}; }

 private:
  std::vector<Writer> writers_;  // by SlotId, up to the highest used
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_SLOT_WRITERS_H_

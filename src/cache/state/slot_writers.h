// Whose bytes are in each slot.
#ifndef QUIRE_CACHE_STATE_SLOT_WRITERS_H_
#define QUIRE_CACHE_STATE_SLOT_WRITERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/identity.h"

namespace quire::cache {

/// Who took a slot last wrote, or will write, what is in it, and it stays that writer's when it is
/// free until it is zeroed: nobody else may get it with those bytes.
///
/// Threads: not synchronised; the caller holds its lock
class SlotWriters {
 public:
  struct Writer {
    TenantId tenant{};   // none: nobody has written to it, or it was zeroed since
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
  /// The next writer of a slot that was just taken. True: it holds another's bytes, to be zeroed
  /// before it is handed out.
  bool Claim(SlotId slot, Writer writer) {
    const Writer before = std::exchange(writers_[slot.number()], writer);
    return !before.tenant.is_none() && before != writer;
  }
  /// Its bytes are nobody's any more.
  void Forget(SlotId slot) { writers_[slot.number()] = {}; }

 private:
  std::vector<Writer> writers_;  // by SlotId, up to the highest used
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_SLOT_WRITERS_H_

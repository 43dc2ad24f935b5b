// The forms of a block: how far one is from another, and one made of another.
#ifndef QUIRE_CACHE_STATE_FORMS_H_
#define QUIRE_CACHE_STATE_FORMS_H_

#include <cstddef>

#include "cache/state/form_error.h"
#include "codec/slot_layout.h"
#include "quire/block_ops.h"

namespace quire::cache {

/// The bytes of a whole block, where the host can read them.
struct Form {
  const codec::SlotLayout& layout;
  const std::byte* bytes = nullptr;
};

/// Of the second form of a block, from the first. Waits for the operations on both.
///
/// Threads: any; nothing writes either form meanwhile
FormError MeasureError(BlockOps& ops, const Form& written, const Form& encoded);

/// Encodes a block anew, from one codec that encodes into another. Returns the error of what it
/// wrote, from what it read.
///
/// Shape:   to [layout.slot_bytes(0)]; the layouts are of one geometry and have one group
/// Threads: any; nothing writes `from`, and nothing else reads `to`
FormError Reencode(BlockOps& ops, const Form& from, const codec::SlotLayout& layout, std::byte* to);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_FORMS_H_

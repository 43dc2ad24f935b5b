#include "cache/state/write_behind.h"

#include <utility>

#include "base/check.h"

namespace quire::cache {

void WriteBehind::Remove(BlockId block) {
  Unqueue(block);
  SetBelow(block, /*twins=*/false, Below::kNothing);
  SetBelow(block, /*twins=*/true, Below::kNothing);
}

void WriteBehind::SetBelow(BlockId block, bool twins, Below below) {
  Entry& entry = entries_[block.number()];
  stored_ -= entry.sealed == Below::kDurable ? 1 : 0;
  (twins ? entry.twins : entry.sealed) = below;
  stored_ += entry.sealed == Below::kDurable ? 1 : 0;
}

void WriteBehind::Queue(BlockId block, bool first) {
  Entry& entry = entries_[block.number()];
  if (std::exchange(entry.queued, true)) return;
  ++queued_;
  entry.before = first ? BlockId::None() : last_;
  entry.after = first ? first_ : BlockId::None();
  (entry.before.is_none() ? first_ : entries_[entry.before.number()].after) = block;
  (entry.after.is_none() ? last_ : entries_[entry.after.number()].before) = block;
}

void WriteBehind::Unqueue(BlockId block) {
  Entry& entry = entries_[block.number()];
  if (!std::exchange(entry.queued, false)) return;
  --queued_;
  (entry.before.is_none() ? first_ : entries_[entry.before.number()].after) = entry.after;
  (entry.after.is_none() ? last_ : entries_[entry.after.number()].before) = entry.before;
}

void WriteBehind::CheckInvariants() const {
  uint64_t queued = 0;
  BlockId before;
  for (BlockId i = first_; !i.is_none(); i = entries_[i.number()].after) {
    QUIRE_CHECK(IsQueued(i) && ++queued <= queued_);
    QUIRE_CHECK(entries_[i.number()].before == std::exchange(before, i));
  }
  QUIRE_CHECK(queued == queued_ && before == last_);
  uint64_t stored = 0;
  for (const Entry& entry : entries_) stored += entry.sealed == Below::kDurable ? 1 : 0;
  QUIRE_CHECK(stored == stored_);
}

}  // namespace quire::cache

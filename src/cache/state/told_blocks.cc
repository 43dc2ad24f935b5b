#include "cache/state/told_blocks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::cache {

void ToldBlocks::Reserve(uint32_t end) {
  if (!on_ || end <= entries_.size()) return;
  const size_t count = std::max<size_t>(end, 2 * entries_.size());
  gone_.reserve(count);
  entries_.resize(count);
}

void ToldBlocks::Stored(BlockId block) {
  if (!on_) return;
  entries_[block.number()].found = true;
  Queue(block);
}

void ToldBlocks::Durable(BlockId block) {
  if (!on_ || !entries_[block.number()].found) return;
  entries_[block.number()].durable = true;
  Queue(block);
}

void ToldBlocks::Gone(BlockId block, const Digest& key) {
  if (!on_ || !entries_[block.number()].found) return;
  Unqueue(block);
  const Entry entry = std::exchange(entries_[block.number()], {});
  if (entry.told) gone_.push_back({.key = key, .durable = entry.durable});
}

ToldBlocks::GoneBlock ToldBlocks::TakeGone() {
  const GoneBlock gone = gone_.back();
  gone_.pop_back();
  return gone;
}

ToldBlocks::News ToldBlocks::TakeQueued() {
  QUIRE_CHECK(gone_.empty());  // or there were more told blocks than entries
  const BlockId block = first_;
  Unqueue(block);
  Entry& entry = entries_[block.number()];
  return {.block = block,
          .stored = !std::exchange(entry.told, true),
          .durable = std::exchange(entry.durable, false)};
}

void ToldBlocks::Queue(BlockId block) {
  Entry& entry = entries_[block.number()];
  if (std::exchange(entry.queued, true)) return;
  entry.before = last_;
  (last_.is_none() ? first_ : entries_[last_.number()].after) = block;
  last_ = block;
}

void ToldBlocks::Unqueue(BlockId block) {
  Entry& entry = entries_[block.number()];
  if (!std::exchange(entry.queued, false)) return;
  (entry.before.is_none() ? first_ : entries_[entry.before.number()].after) = entry.after;
  (entry.after.is_none() ? last_ : entries_[entry.after.number()].before) = entry.before;
  entry.before = entry.after = BlockId::None();
}

void ToldBlocks::CheckInvariants() const {
  uint64_t told = 0;
  uint64_t queued = 0;
  for (const Entry& entry : entries_) {
    told += entry.told ? 1 : 0;
    queued += entry.queued ? 1 : 0;
    QUIRE_CHECK(entry.found || (!entry.told && !entry.durable && !entry.queued));
    QUIRE_CHECK(entry.queued == (entry.found && (!entry.told || entry.durable)));
  }
  QUIRE_CHECK(told + gone_.size() <= entries_.size());
  BlockId before;
  for (BlockId i = first_; !i.is_none(); i = entries_[i.number()].after) {
    QUIRE_CHECK(queued-- > 0 && entries_[i.number()].queued);
    QUIRE_CHECK(entries_[i.number()].before == std::exchange(before, i));
  }
  QUIRE_CHECK(queued == 0 && before == last_);
}

}  // namespace quire::cache

#include "evict/s3fifo.h"

#include <algorithm>

namespace quire::evict {
namespace {

constexpr uint8_t kUsesMax = 3;
constexpr uint64_t kSmallShare = 10;  // of the cache, one in

}  // namespace

void S3FifoPolicy::SetHistory(uint64_t bytes) {
  ghosts_max_ = bytes / GhostKeys::kBytesEach;
  ghosts_.Trim(ghosts_max_);
}

void S3FifoPolicy::Add(BlockId block, const BlockFacts& facts) {
  entries_.Prefetch(facts.parent);  // it is added next
  const auto [entry, is_new] = entries_.At(block, facts.key);
  if (is_new) {
    entry.queue = ghosts_.Take(facts.key) ? kMain : kSmall;
    entry.stamp = ++stamp_;
  } else if (entry.uses < kUsesMax) {
    ++entry.uses;
  }
  ++blocks_[entry.queue];
  order_.Add(block, facts.parent, entry.rank());
  Settle();
}

void S3FifoPolicy::Remove(BlockId block) {
  --blocks_[order_.rank(block).queue];
  order_.Remove(block);
  Settle();
}

void S3FifoPolicy::Evict(BlockId block) {
  if (order_.rank(block).queue == kSmall) {
    ghosts_.Add(entries_.key(block));
    ghosts_.Trim(std::min(ghosts_max_, entries_.size()));
  }
  Forget(block);
}

void S3FifoPolicy::Forget(BlockId block) {
  --blocks_[order_.rank(block).queue];
  order_.Remove(block);
  entries_.Forget(block);
  Settle();
}

// Whose turn it is to lose a block.
S3FifoPolicy::Queue S3FifoPolicy::Turn() const {
  const bool small_is_full = blocks_[kSmall] * kSmallShare > order_.size();
  const Queue turn = small_is_full ? kSmall : kMain;
  return order_.FirstOf(turn) ? turn : turn == kSmall ? kMain : kSmall;
}

// Until what stands first may go. It ends: every round takes a use from a block.
void S3FifoPolicy::Settle() {
  for (;;) {
    const auto first = order_.FirstOf(Turn());
    if (!first) return;
    Entry& entry = entries_[first->block];
    if (entry.uses == 0 || (entry.queue == kSmall && entry.uses < 2)) return;
    --blocks_[entry.queue];
    ++blocks_[kMain];
    entry.uses = entry.queue == kSmall ? 0 : entry.uses - 1;
    entry.queue = kMain;
    entry.stamp = ++stamp_;
    order_.Move(first->block, entry.rank());
  }
}

std::optional<BlockId> S3FifoPolicy::Victim() const {
  const auto leaf = order_.FirstOf(Turn());
  return leaf ? std::optional(leaf->block) : std::nullopt;
}

}  // namespace quire::evict

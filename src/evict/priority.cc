#include "evict/priority.h"

#include <algorithm>

namespace quire::evict {
namespace {

constexpr uint32_t kUnset = BlockFacts{}.priority;

}  // namespace

void PriorityPolicy::Advance(uint64_t time_ms) {
  now_ms_ = std::max(now_ms_, time_ms);
  while (!expiries_.empty() && expiries_.begin()->time_ms <= now_ms_) {
    const BlockId block = expiries_.begin()->block;
    expiries_.erase(expiries_.begin());
    entries_[block].expires_ms = 0;
    Rank rank = order_.rank(block);
    rank.queue = kUnset;
    order_.Move(block, rank);
  }
}

void PriorityPolicy::Add(BlockId block, const BlockFacts& facts) {
  Entry& entry = entries_.At(block, facts.key).value;
  if (in_request_) ++entry.uses;
  const bool is_expired = facts.expires_ms != 0 && facts.expires_ms <= now_ms_;
  const uint32_t queue = is_expired ? kUnset : std::min<uint32_t>(facts.priority, kPriorities - 1);
  order_.Add(block, facts.parent,
             {.queue = queue, .weight = entry.uses > 1 ? 1U : 0U, .stamp = ++stamp_});
  entry.expires_ms = is_expired ? 0 : facts.expires_ms;
  if (entry.expires_ms != 0) expiries_.insert({entry.expires_ms, block});
}

void PriorityPolicy::Remove(BlockId block) {
  order_.Remove(block);
  const uint64_t expires_ms = entries_[block].expires_ms;
  if (expires_ms != 0) expiries_.erase({expires_ms, block});
}

void PriorityPolicy::Evict(BlockId block) {
  Remove(block);
  entries_.Forget(block);
}

std::optional<BlockId> PriorityPolicy::Victim() const {
  for (uint32_t queue = 0; queue < kPriorities; ++queue) {
    if (const auto leaf = order_.FirstOf(queue)) return leaf->block;
  }
  return std::nullopt;
}

}  // namespace quire::evict

#include "evict/priority.h"

#include <algorithm>

namespace quire::evict {
namespace {

constexpr uint64_t kUnset = BlockFacts{}.priority;
constexpr uint64_t kMost = 100;

uint64_t Weight(uint64_t priority, bool is_shared) { return priority * 2 + (is_shared ? 1 : 0); }

}  // namespace

void PriorityPolicy::Advance(uint64_t time_ms) {
  now_ms_ = std::max(now_ms_, time_ms);
  while (!expiries_.empty() && expiries_.begin()->time_ms <= now_ms_) {
    const BlockId block = expiries_.begin()->block;
    expiries_.erase(expiries_.begin());
    entries_[block].expires_ms = 0;
    Rank rank = order_.rank(block);
    rank.weight = Weight(kUnset, entries_[block].uses > 1);
    order_.Move(block, rank);
  }
}

void PriorityPolicy::Add(BlockId block, const BlockFacts& facts) {
  Entry& entry = entries_.At(block, facts.key).value;
  if (in_request_) ++entry.uses;
  const bool is_expired = facts.expires_ms != 0 && facts.expires_ms <= now_ms_;
  const uint64_t priority = is_expired ? kUnset : std::min<uint64_t>(facts.priority, kMost);
  order_.Add(block, facts.parent,
             {.queue = 0, .weight = Weight(priority, entry.uses > 1), .stamp = ++stamp_});
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

}  // namespace quire::evict

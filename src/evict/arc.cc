#include "evict/arc.h"

#include <algorithm>

namespace quire::evict {

void ArcPolicy::SetHistory(uint64_t bytes) {
  ghosts_max_ = bytes / (ghosts_.size() * GhostKeys::kBytesEach);
  for (GhostKeys& ghosts : ghosts_) ghosts.Trim(ghosts_max_);
}

ArcPolicy::List ArcPolicy::ListOf(bool is_new, uint64_t key) {
  if (!is_new) return kOften;
  const auto once = static_cast<double>(ghosts_[kOnce].size());
  const auto often = static_cast<double>(ghosts_[kOften].size());
  if (ghosts_[kOnce].Take(key)) {
    once_target_ =
        std::min(static_cast<double>(known_.size()), once_target_ + std::max(1.0, often / once));
    return kOften;
  }
  if (ghosts_[kOften].Take(key)) {
    once_target_ = std::max(0.0, once_target_ - std::max(1.0, once / often));
    return kOften;
  }
  return kOnce;
}

void ArcPolicy::Add(BlockId block, const BlockFacts& facts) {
  known_.Prefetch(facts.parent);  // it is added next
  const bool is_new = known_.At(block, facts.key).is_new;
  const List list = ListOf(is_new, facts.key);
  order_.Add(block, facts.parent, {.queue = list, .weight = 0, .stamp = ++stamp_});
  ++blocks_[list];
}

void ArcPolicy::Remove(BlockId block) {
  const uint32_t list = order_.rank(block).queue;
  order_.Remove(block);
  --blocks_[list];
}

void ArcPolicy::Evict(BlockId block) {
  GhostKeys& ghosts = ghosts_[order_.rank(block).queue];
  Remove(block);
  ghosts.Add(known_.key(block));
  ghosts.Trim(std::min(ghosts_max_, known_.size()));
  known_.Forget(block);
}

void ArcPolicy::Forget(BlockId block) {
  Remove(block);
  known_.Forget(block);
}

std::optional<BlockId> ArcPolicy::Victim() const {
  const List list = static_cast<double>(blocks_[kOnce]) > once_target_ ? kOnce : kOften;
  auto leaf = order_.FirstOf(list);
  if (!leaf) leaf = order_.FirstOf(list == kOnce ? kOften : kOnce);
  return leaf ? std::optional(leaf->block) : std::nullopt;
}

}  // namespace quire::evict

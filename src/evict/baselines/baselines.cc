#include "evict/baselines/baselines.h"

#include <algorithm>

namespace quire::evict {

namespace {

constexpr std::array<std::string_view, 3> kBaselines = {"lfu", "s3fifo", "arc"};

constexpr uint8_t kUsesMax = 3;
constexpr uint64_t kSmallShare = 10;  // of the cache, one in

}  // namespace

std::span<const std::string_view> BaselineNames() { return kBaselines; }

std::unique_ptr<Policy> MakeBaseline(std::string_view name) {
  if (name == "lfu") return std::make_unique<LfuPolicy>();
  if (name == "s3fifo") return std::make_unique<S3FifoPolicy>();
  if (name == "arc") return std::make_unique<ArcPolicy>();
  return nullptr;
}

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

// The queue that loses a block next.
S3FifoPolicy::Queue S3FifoPolicy::Turn() const {
  const bool small_is_full = blocks_[kSmall] * kSmallShare > order_.size();
  const Queue turn = small_is_full ? kSmall : kMain;
  return order_.FirstOf(turn) ? turn : turn == kSmall ? kMain : kSmall;
}

// Until the block that stands first may go. It ends: every round takes a use from a block.
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

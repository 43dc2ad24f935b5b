#include "evict/lru.h"

#include "base/check.h"

namespace quire::evict {

LruPolicy::LruPolicy() : links_{{.previous = 0, .next = 0}} {}

void LruPolicy::Add(BlockId block) {
  QUIRE_CHECK(!block.is_none());
  const uint32_t at = block.number() + 1;
  while (links_.size() <= at) {
    const auto self = static_cast<uint32_t>(links_.size());
    links_.push_back({.previous = self, .next = self});
  }
  QUIRE_CHECK_MSG(links_[at].next == at, "the block is already evictable");
  const uint32_t newest = links_[0].previous;
  links_[at] = {.previous = newest, .next = 0};
  links_[newest].next = at;
  links_[0].previous = at;
  ++block_count_;
}

void LruPolicy::Remove(BlockId block) {
  const uint64_t at = block.number() + uint64_t{1};
  QUIRE_CHECK_MSG(at < links_.size() && links_[at].next != at, "the block is not evictable");
  const Link link = links_[at];
  links_[link.previous].next = link.next;
  links_[link.next].previous = link.previous;
  const auto self = static_cast<uint32_t>(at);
  links_[at] = {.previous = self, .next = self};
  --block_count_;
}

std::optional<BlockId> LruPolicy::Victim() const {
  if (block_count_ == 0) return std::nullopt;
  return BlockId(links_[0].next - 1);
}

}  // namespace quire::evict

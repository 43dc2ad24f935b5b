#include "evict/classic_policies.h"

#include "base/check.h"

namespace quire::evict {

void LruPolicy::Add(BlockId block) {
  QUIRE_CHECK(!block.is_none());
  QUIRE_CHECK_MSG(!order_.contains(block), "the block is already evictable");
  order_.Append(0, block);
  ++block_count_;
}

void LruPolicy::Remove(BlockId block) {
  QUIRE_CHECK_MSG(order_.contains(block), "the block is not evictable");
  order_.Remove(0, block);
  --block_count_;
}

std::optional<BlockId> LruPolicy::Victim() const {
  if (block_count_ == 0) return std::nullopt;
  return order_.First(0);
}

}  // namespace quire::evict

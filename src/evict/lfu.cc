#include "evict/lfu.h"

namespace quire::evict {

void LfuPolicy::Add(BlockId block, const BlockFacts& facts) {
  const uint64_t uses = ++uses_.At(block, facts.key).value;
  order_.Add(block, facts.parent, {.queue = 0, .weight = uses, .stamp = ++stamp_});
}

void LfuPolicy::Evict(BlockId block) {
  order_.Remove(block);
  uses_.Forget(block);
}

}  // namespace quire::evict

#include "apps/quire/belady.h"

#include "base/check.h"

namespace quire::app {

void BeladyPolicy::Start(uint64_t blocks) {
  first_ = next_;
  next_ += blocks;
  QUIRE_CHECK(next_ <= next_uses_.size());
}

void BeladyPolicy::Add(BlockId block, const evict::BlockFacts& facts) {
  order_.Add(block, facts.parent, {.queue = 0, .weight = RankOf(facts.depth), .stamp = ++added_});
}

bool BeladyPolicy::Admits(uint32_t depth) const {
  const auto victim = order_.First();
  return victim && order_.rank(*victim).weight < RankOf(depth);
}

}  // namespace quire::app

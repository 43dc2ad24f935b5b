// Used as the cache uses it: a tree of blocks, leases on paths from its root, eviction of victims.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <list>

#include "evict/lru.h"

namespace quire::evict {
namespace {

constexpr uint32_t kNoParent = UINT32_MAX;

class Cache {
 public:
  void Step() {
    switch (*rc::gen::weightedElement<int>({{3, 0}, {3, 1}, {4, 2}, {2, 3}})) {
      case 0: return Lease();
      case 1: return Publish();
      case 2: return EndLease();
      default: return Evict();
    }
  }

  void Check() const {
    RC_ASSERT(lru_.size() == order_.size());
    RC_ASSERT(lru_.Victim().has_value() == !order_.empty());
    if (order_.empty()) return;
    const uint32_t victim = lru_.Victim()->number();
    RC_ASSERT(victim == order_.front());
    // The promise of policy.h: what goes first is a leaf that nobody leases.
    RC_ASSERT(blocks_[victim].leases == 0u);
    for (const Block& block : blocks_) RC_ASSERT(!block.present || block.parent != victim);
  }

  void Finish() {
    while (!leases_.empty()) EndLease();
    while (!order_.empty()) {
      Check();
      Evict();
    }
    Check();
    RC_ASSERT(std::ranges::none_of(blocks_, &Block::present));
  }

 private:
  struct Block {
    bool present = false;
    uint32_t parent = kNoParent;
    uint32_t leases = 0;
  };

  // Pins a random present block and everything above it, first block first.
  void Lease() {
    std::vector<uint32_t> path;
    for (uint32_t at = SomePresent(); at != kNoParent; at = blocks_[at].parent) path.push_back(at);
    std::ranges::reverse(path);
    for (uint32_t block : path) Pin(block);
    leases_.push_back(path);
  }

  // A lease grows by one new block; it is published leased.
  void Publish() {
    if (leases_.empty()) return;
    auto& lease = leases_[*rc::gen::inRange<size_t>(0, leases_.size())];
    const auto unused = std::ranges::find(blocks_, false, &Block::present);
    const auto number = static_cast<uint32_t>(unused - blocks_.begin());
    if (unused == blocks_.end()) blocks_.emplace_back();
    blocks_[number] = {true, lease.empty() ? kNoParent : lease.back(), 1};
    lease.push_back(number);
  }

  void EndLease() {
    if (leases_.empty()) return;
    const auto lease = leases_.begin() + *rc::gen::inRange<size_t>(0, leases_.size());
    std::ranges::reverse(*lease);  // deepest first
    for (uint32_t block : *lease) {
      if (--blocks_[block].leases > 0) continue;
      lru_.Add(BlockId(block));
      order_.push_back(block);
    }
    leases_.erase(lease);
  }

  void Evict() {
    const auto victim = lru_.Victim();
    if (!victim) return;
    lru_.Remove(*victim);
    order_.pop_front();
    blocks_[victim->number()].present = false;
  }

  void Pin(uint32_t block) {
    if (blocks_[block].leases++ > 0) return;
    lru_.Remove(BlockId(block));
    order_.remove(block);
  }

  uint32_t SomePresent() const {
    std::vector<uint32_t> present = {kNoParent};
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].present) present.push_back(i);
    }
    return present[*rc::gen::inRange<size_t>(0, present.size())];
  }

  LruPolicy lru_;
  std::list<uint32_t> order_;  // the judge: evictable blocks, oldest first
  std::vector<Block> blocks_;  // by id
  std::vector<std::vector<uint32_t>> leases_;
};

RC_GTEST_PROP(LruProperty, EqualsAListAndEvictsOnlyLeaves, ()) {
  Cache cache;
  for (int step = 0; step < 150; ++step) {
    cache.Step();
    cache.Check();
  }
  cache.Finish();
}

}  // namespace
}  // namespace quire::evict

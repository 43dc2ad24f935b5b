// The counts of leases alone, on a tree, in lock step with naive ones, which are counted anew from
// the holders.
#include "cache/state/lease_counts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/prng.h"
#include "cache/state/lock_step.h"

namespace quire::cache {
namespace {

constexpr uint32_t kLeaseCountsBlock = 4;

struct LeaseCountsNaiveBlock {
  BlockId parent{};
  uint64_t holders = 0;  // that are not children
};

class LeaseCountsLockStep {
 public:
  void Step(Prng& prng) {
    if (prng.NextChance(2)) touched_.Take();  // as each hold of the lock does
    switch (prng.NextBelow(8)) {
      case 0:
      case 1:
      case 2: AddBlock(prng); break;
      case 3:
      case 4: Add(prng); break;
      case 5:
      case 6: Drop(prng); break;
      default: Remove(prng);
    }
    Compare(prng);
  }

 private:
  // The naive counts.

  bool HasChildren(BlockId parent) const {
    return std::ranges::any_of(blocks_, [&](const auto& b) { return b.second.parent == parent; });
  }
  uint32_t Leases(BlockId id) const {
    uint64_t leases = blocks_.at(id).holders;
    for (const auto& [child, block] : blocks_) {
      if (block.parent == id && Leases(child) > 0) ++leases;
    }
    return static_cast<uint32_t>(leases);
  }
  std::set<BlockId> Leased() const {
    std::set<BlockId> leased;
    for (const auto& [id, block] : blocks_) {
      if (Leases(id) > 0) leased.insert(id);
    }
    return leased;
  }
  std::optional<BlockId> Any(Prng& prng) const {
    if (blocks_.empty()) return std::nullopt;
    auto block = blocks_.begin();
    std::advance(block, static_cast<int64_t>(prng.NextBelow(blocks_.size())));
    return block->first;
  }
  // `changed` must be the blocks that only `more` has, from `first` towards the root.
  void ExpectChanged(const std::set<BlockId>& fewer, const std::set<BlockId>& more, BlockId first,
                     const std::vector<BlockId>& changed) const {
    BlockId next = first;
    for (const BlockId block : changed) {
      ASSERT_EQ(block, next);
      ASSERT_TRUE(more.contains(block) && !fewer.contains(block));
      next = blocks_.at(block).parent;
    }
    ASSERT_EQ(changed.size(), more.size() - fewer.size());
  }

  // Makes the same call on both.

  void AddBlock(Prng& prng) {
    const BlockId parent = prng.NextChance(8) ? BlockId::None() : Any(prng).value_or(BlockId());
    const std::vector<TokenId> tokens(kLeaseCountsBlock, static_cast<TokenId>(next_token_++));
    BlockId id(static_cast<uint32_t>(blocks_.size()));
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (!blocks_.contains(BlockId(i))) id = BlockId(i);
    }
    tree_.Insert(root_, parent, tokens, {&id, 1});
    counts_.Reserve(id.number() + 1);
    const auto holders = static_cast<uint32_t>(prng.NextBelow(3));
    counts_.Begin(id, holders);
    if (holders > 0) counts_.Add(parent, [](BlockId) {});
    blocks_.emplace(id, LeaseCountsNaiveBlock{.parent = parent, .holders = holders});
  }
  void Remove(Prng& prng) {
    const auto id = Any(prng);
    if (!id || HasChildren(*id) || Leases(*id) > 0) return;
    tree_.Remove(*id);
    blocks_.erase(*id);
  }
  void Add(Prng& prng) {
    const auto id = Any(prng);
    if (!id) return;
    const std::set<BlockId> before = Leased();
    const auto holders = static_cast<uint32_t>(1 + prng.NextBelow(2));
    std::vector<BlockId> changed;
    counts_.Add(*id, [&](BlockId block) { changed.push_back(block); }, holders);
    blocks_.at(*id).holders += holders;
    ExpectChanged(before, Leased(), *id, changed);
  }
  // Leases that a long hold of the lock defers count until they are dropped.
  void Drop(Prng& prng) {
    const auto id = Any(prng);
    if (!id || blocks_.at(*id).holders == 0) return;
    if (prng.NextChance(3)) touched_.Count(kRecordsPerHold - kBlocksPerHold - prng.NextBelow(3));
    const std::set<BlockId> before = Leased();
    std::vector<BlockId> changed;
    const auto changes = [&](BlockId block) { changed.push_back(block); };
    counts_.Drop(*id, changes);
    while (counts_.has_deferred()) {
      const BlockId deferred = counts_.TakeDeferred();
      const BlockId next = changed.empty() ? *id : blocks_.at(changed.back()).parent;
      ASSERT_EQ(deferred, next);
      ASSERT_GT(counts_.of(deferred), 0u);
      ASSERT_GE(touched_.Take(), kRecordsPerHold - kBlocksPerHold);
      counts_.Drop(deferred, changes);
    }
    --blocks_.at(*id).holders;
    ExpectChanged(Leased(), before, *id, changed);
  }

  void Compare(Prng& prng) {
    for (const auto& [id, block] : blocks_) ASSERT_EQ(counts_.of(id), Leases(id));
    if (const auto id = Any(prng)) {
      std::vector<BlockId> path;  // root first
      for (BlockId b = *id; !b.is_none(); b = blocks_.at(b).parent) path.insert(path.begin(), b);
      const auto leased = std::ranges::count_if(path, [&](BlockId b) { return Leases(b) > 0; });
      ASSERT_EQ(counts_.LeasedBlocks(*id), leased);
    }
  }

  index::RadixTree tree_{kLeaseCountsBlock};
  const index::RootId root_ = tree_.Root(Digest{1});
  TouchedRecords touched_;
  LeaseCounts counts_{tree_, touched_};
  std::map<BlockId, LeaseCountsNaiveBlock> blocks_;
  uint32_t next_token_ = 1;
};

RC_GTEST_PROP(LeaseCountsProperty, AgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  LeaseCountsLockStep both;
  StepFromSeeds(both, seeds, 3);
}

}  // namespace
}  // namespace quire::cache

// ARC and S3-FIFO beside ones that are as plain as can be: the same calls, the same victims.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "base/prng.h"
#include "evict/baselines/baselines.h"
#include "tests/suite/policy_tree.h"

namespace quire::evict {
namespace {

// What both have in common: evictable blocks with their parents, and keys of blocks that are here.
class NaivePolicy : public Policy {
 public:
  using Policy::Add;
  std::string_view name() const override { return "naive"; }
  std::unique_ptr<Policy> MakeSibling() const override { return nullptr; }
  uint64_t bytes_per_block() const override { return 0; }
  void Add(BlockId block) override { Add(block, {}); }
  uint64_t size() const override { return parents_.size(); }

 protected:
  void Enter(BlockId block, BlockId parent) { parents_[block] = parent; }
  void Leave(BlockId block) { parents_.erase(block); }
  bool IsLeaf(BlockId block) const {
    return std::ranges::none_of(parents_, [&](const auto& entry) { return entry.second == block; });
  }
  std::optional<BlockId> FirstLeaf(const std::vector<BlockId>& list) const {
    const auto leaf = std::ranges::find_if(list, [&](BlockId block) { return IsLeaf(block); });
    return leaf == list.end() ? std::nullopt : std::optional(*leaf);
  }
  // Whether the block was not here before.
  bool Know(BlockId block, uint64_t key) {
    const auto known = keys_.find(block);
    if (known != keys_.end() && known->second == key) return false;
    keys_[block] = key;
    return true;
  }

  std::map<BlockId, BlockId> parents_;
  std::map<BlockId, uint64_t> keys_;
};

void Remember(std::deque<uint64_t>& ghosts, uint64_t key, size_t most) {
  std::erase(ghosts, key);
  if (key != 0) ghosts.push_back(key);
  while (ghosts.size() > most) ghosts.pop_front();
}

class NaiveArc final : public NaivePolicy {
 public:
  using NaivePolicy::Add;
  explicit NaiveArc(size_t ghosts_max) : ghosts_max_(ghosts_max) {}

  void Add(BlockId block, const BlockFacts& facts) override {
    int list = 0;
    if (!Know(block, facts.key)) {
      list = 1;
    } else {
      const double once = static_cast<double>(ghosts_[0].size());
      const double often = static_cast<double>(ghosts_[1].size());
      if (std::erase(ghosts_[0], facts.key) > 0) {
        target_ =
            std::min(static_cast<double>(keys_.size()), target_ + std::max(1.0, often / once));
        list = 1;
      } else if (std::erase(ghosts_[1], facts.key) > 0) {
        target_ = std::max(0.0, target_ - std::max(1.0, once / often));
        list = 1;
      }
    }
    lists_[list].push_back(block);
    Enter(block, facts.parent);
  }
  void Remove(BlockId block) override {
    for (auto& list : lists_) std::erase(list, block);
    Leave(block);
  }
  void Evict(BlockId block) override {
    const int list = std::ranges::count(lists_[1], block) > 0 ? 1 : 0;
    Remove(block);
    Remember(ghosts_[list], keys_[block], std::min(ghosts_max_, keys_.size()));
    keys_.erase(block);
  }
  void Forget(BlockId block) override {
    Remove(block);
    keys_.erase(block);
  }
  std::optional<BlockId> Victim() const override {
    const int list = static_cast<double>(lists_[0].size()) > target_ ? 0 : 1;
    const auto leaf = FirstLeaf(lists_[list]);
    return leaf ? leaf : FirstLeaf(lists_[1 - list]);
  }

 private:
  const size_t ghosts_max_;
  std::vector<BlockId> lists_[2];  // once, often; least recent first
  std::deque<uint64_t> ghosts_[2];
  double target_ = 0;
};

class NaiveS3Fifo final : public NaivePolicy {
 public:
  using NaivePolicy::Add;
  explicit NaiveS3Fifo(size_t ghosts_max) : ghosts_max_(ghosts_max) {}

  void Add(BlockId block, const BlockFacts& facts) override {
    if (Know(block, facts.key)) {
      entries_[block] = {.queue = std::erase(ghosts_, facts.key) > 0 ? 1 : 0, .place = ++place_};
    } else {
      entries_[block].uses = std::min(entries_[block].uses + 1, 3);
    }
    Enter(block, facts.parent);
    Settle();
  }
  void Remove(BlockId block) override {
    Leave(block);
    Settle();
  }
  void Evict(BlockId block) override {
    if (entries_[block].queue == 0) {
      Remember(ghosts_, keys_[block], std::min(ghosts_max_, keys_.size()));
    }
    Forget(block);
  }
  void Forget(BlockId block) override {
    Leave(block);
    keys_.erase(block);
    Settle();
  }
  std::optional<BlockId> Victim() const override {
    const std::vector<BlockId> small = Queue(0);
    const int turn = small.size() * 10 > parents_.size() ? 0 : 1;
    const auto leaf = FirstLeaf(Queue(turn));
    return leaf ? leaf : FirstLeaf(Queue(1 - turn));
  }

 private:
  struct Entry {
    int queue = 0;
    int uses = 0;
    uint64_t place = 0;
  };

  // The evictable blocks of a queue, first in first.
  std::vector<BlockId> Queue(int queue) const {
    std::vector<BlockId> blocks;
    for (const auto& [block, parent] : parents_) {
      if (entries_.at(block).queue == queue) blocks.push_back(block);
    }
    std::ranges::sort(blocks, {}, [&](BlockId block) { return entries_.at(block).place; });
    return blocks;
  }
  // A block that was used since gets another round, or moves to the main queue, before it may go.
  void Settle() {
    while (const auto first = Victim()) {
      Entry& entry = entries_[*first];
      if (entry.queue == 0 ? entry.uses < 2 : entry.uses == 0) return;
      entry = {.queue = 1, .uses = entry.queue == 0 ? 0 : entry.uses - 1, .place = ++place_};
    }
  }

  const size_t ghosts_max_;
  std::map<BlockId, Entry> entries_;
  std::deque<uint64_t> ghosts_;
  uint64_t place_ = 0;
};

// Two policies that must agree whenever they are asked.
class Both final : public NaivePolicy {
 public:
  using NaivePolicy::Add;
  Both(Policy& first, Policy& second) : first_(first), second_(second) {}

  void Add(BlockId block, const BlockFacts& facts) override {
    first_.Add(block, facts);
    second_.Add(block, facts);
  }
  void Remove(BlockId block) override {
    first_.Remove(block);
    second_.Remove(block);
  }
  void Evict(BlockId block) override {
    first_.Evict(block);
    second_.Evict(block);
    ++evicted;
  }
  void Forget(BlockId block) override {
    first_.Forget(block);
    second_.Forget(block);
  }
  std::optional<BlockId> Victim() const override {
    EXPECT_EQ(first_.Victim(), second_.Victim());
    return first_.Victim();
  }

  uint64_t evicted = 0;

 private:
  Policy& first_;
  Policy& second_;
};

void RunBoth(Policy& policy, Policy& judge, uint64_t seed) {
  Both both(policy, judge);
  Prng prng(seed);
  PolicyTree tree(both, [&prng](uint64_t bound) { return prng.NextBelow(bound); });
  for (int step = 0; step < 3000 && !testing::Test::HasFailure(); ++step) {
    tree.Step();
    EXPECT_EQ(policy.Victim(), judge.Victim()) << "seed " << seed << ", step " << step;
  }
  EXPECT_GT(both.evicted, 100u);
}

constexpr size_t kGhostLimits[] = {0, 3, 1000};

TEST(PolicyLockstep, Arc) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const size_t ghosts_max : kGhostLimits) {
      ArcPolicy policy;
      policy.SetHistory(2 * ghosts_max * GhostKeys::kBytesEach);
      NaiveArc judge(ghosts_max);
      RunBoth(policy, judge, seed);
    }
  }
}

TEST(PolicyLockstep, S3Fifo) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const size_t ghosts_max : kGhostLimits) {
      S3FifoPolicy policy;
      policy.SetHistory(ghosts_max * GhostKeys::kBytesEach);
      NaiveS3Fifo judge(ghosts_max);
      RunBoth(policy, judge, seed);
    }
  }
}

}  // namespace
}  // namespace quire::evict

// Memory that runs out at any allocation: the index is as it was, and the call works afterwards.
#include "base/failing_new.h"

#ifdef QUIRE_FAILING_NEW
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/prng.h"
#include "index/radix_tree.h"
#include "index/split_set.h"

namespace quire::index {
namespace {

constexpr uint32_t kBlock = 4;

/// Calls until no allocation fails, and `check` after each that threw. How many did.
template <typename Call, typename Check>
int64_t Sweep(Call&& call, Check&& check) {
  for (int64_t failing = 0;; ++failing) {
    const Attempt attempt = WithoutMemory(failing, call);
    EXPECT_EQ(attempt.threw, attempt.failed) << "nothing of it is optional";
    if (!attempt.failed) return failing;
    check();
  }
}

/// A tree whose every insertion is tried with every allocation failing.
class FailingTree {
 public:
  RootId Root(uint8_t number) {
    Digest key{};
    key.front() = number;
    RootId root;
    Sweep([&] { root = tree_.Root(key); },
          [&] {
            CheckAsBefore();
            EXPECT_EQ(tree_.FindRoot(key), std::nullopt);
          });
    return root;
  }

  /// Returns how many allocations it took.
  int64_t Insert(RootId root, BlockId parent, std::span<const TokenId> tokens,
                 std::span<const BlockId> blocks) {
    const int64_t failures = Sweep([&] { tree_.Insert(root, parent, tokens, blocks); },
                                   [&] {
                                     CheckAsBefore();
                                     for (const BlockId id : blocks) {
                                       EXPECT_FALSE(tree_.contains(id));
                                     }
                                   });
    blocks_ += blocks.size();
    nodes_ = tree_.node_count();
    tree_.CheckInvariants();
    EXPECT_EQ(tree_.block_count(), blocks_);
    return failures;
  }

  RadixTree& tree() { return tree_; }

 private:
  void CheckAsBefore() const {
    tree_.CheckInvariants();
    EXPECT_EQ(tree_.block_count(), blocks_);
    EXPECT_EQ(tree_.node_count(), nodes_);
  }

  RadixTree tree_{kBlock};
  uint64_t blocks_ = 0;
  uint64_t nodes_ = 0;
};

std::vector<TokenId> Fill(TokenId token, uint64_t blocks = 1) {
  return std::vector<TokenId>(blocks * kBlock, token);
}

TEST(NoMemory, EveryKindOfInsertionCanBeTriedAgain) {
  FailingTree failing;
  const RootId root = failing.Root(1);
  const std::vector<BlockId> run = {BlockId(0), BlockId(1), BlockId(2), BlockId(3)};
  EXPECT_GE(failing.Insert(root, BlockId::None(), Fill(7, 4), run), 3) << "a first leaf";
  EXPECT_GE(failing.Insert(root, BlockId(3), Fill(8), {{BlockId(4)}}), 2) << "a run that grows";
  EXPECT_EQ(failing.Insert(root, BlockId(4), Fill(8), {{BlockId(5)}}), 0) << "it has doubled";
  EXPECT_GE(failing.Insert(root, BlockId(1), Fill(9), {{BlockId(600)}}), 6) << "a split";
  EXPECT_GE(failing.Insert(root, BlockId(1), Fill(10), {{BlockId(6)}}), 2) << "a sibling";
  const RootId other = failing.Root(2);
  EXPECT_GE(failing.Insert(other, BlockId::None(), Fill(7), {{BlockId(7)}}), 2);
  std::vector<BlockId> path;
  EXPECT_EQ(failing.tree().Find(root, Fill(7, 4), path), 4u);
  EXPECT_EQ(path, run);
}

TEST(NoMemory, ATreeThatGrowsThroughFailuresIsRight) {
  FailingTree failing;
  RadixTree judge(kBlock);
  const RootId root = failing.Root(1);
  ASSERT_EQ(judge.Root([] {
    Digest key{};
    key.front() = 1;
    return key;
  }()),
            root);
  Prng prng(1);
  constexpr uint32_t kSteps = 300;
  for (uint32_t id = 0; id < kSteps; ++id) {
    const auto parent = prng.NextChance(8) ? BlockId::None()
                                           : BlockId(static_cast<uint32_t>(prng.NextBelow(id + 1)));
    const BlockId below = parent == BlockId(id) ? BlockId::None() : parent;
    const auto tokens = Fill(static_cast<TokenId>(id));
    failing.Insert(root, below, tokens, {{BlockId(id)}});
    judge.Insert(root, below, tokens, {{BlockId(id)}});
  }
  for (uint32_t id = 0; id < kSteps; ++id) {
    EXPECT_EQ(failing.tree().parent(BlockId(id)), judge.parent(BlockId(id)));
    EXPECT_EQ(failing.tree().depth(BlockId(id)), judge.depth(BlockId(id)));
  }
  EXPECT_EQ(failing.tree().node_count(), judge.node_count());
}

TEST(NoMemory, ASetThatGrowsAndSplitsThroughFailuresIsRight) {
  constexpr uint32_t kNumbers = 5 * SplitSet::kBucketElements;
  SplitSet set;
  Prng hashes(1);
  int64_t failures = 0;
  const auto find = [&](uint32_t hash, uint32_t number) {
    return set.Find(hash, [&](uint32_t candidate) { return candidate == number; }).has_value();
  };
  for (uint32_t i = 0; i < kNumbers; ++i) {
    const auto hash = static_cast<uint32_t>(hashes.Next64());
    failures += Sweep([&] { set.Insert(hash, i); },
                      [&] {
                        ASSERT_EQ(set.size(), i);
                        ASSERT_FALSE(find(hash, i));
                        Prng again(1);
                        for (uint32_t known = 0; known < i; ++known) {
                          ASSERT_TRUE(find(static_cast<uint32_t>(again.Next64()), known));
                        }
                      });
  }
  EXPECT_GE(failures, 20) << "doublings, splits, and the list of parts";
  EXPECT_EQ(set.size(), kNumbers);
}

TEST(NoMemory, AReservedInsertionNeedsNone) {
  SplitSet set;
  Prng prng(1);
  for (uint32_t i = 0; i < 3000; i += 2) {
    const std::array<uint32_t, 2> hashes = {static_cast<uint32_t>(prng.Next64()),
                                            static_cast<uint32_t>(prng.Next64())};
    set.Reserve(hashes);
    const Attempt attempt = WithoutMemory(0, [&] {
      set.Insert(hashes[0], i);
      set.Replace(hashes[0], i, 100'000 + i);
      set.Erase(hashes[0], 100'000 + i);
      set.Insert(hashes[0], i);
      set.Insert(hashes[1], i + 1);
    });
    ASSERT_FALSE(attempt.failed) << i;
  }
  EXPECT_EQ(set.size(), 3000u);
}

}  // namespace
}  // namespace quire::index

#endif  // QUIRE_FAILING_NEW

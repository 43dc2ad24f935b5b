#include "index/radix_tree.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace quire::index {
namespace {

static_assert(!std::is_convertible_v<RootId, BlockId>);
static_assert(!std::is_convertible_v<uint32_t, RootId>);

constexpr uint32_t kBlockTokens = 2;
constexpr BlockId kNoParent = BlockId::None();

Digest Key(uint8_t number) {
  Digest key{};
  key.back() = number;
  return key;
}

std::vector<BlockId> Ids(std::initializer_list<uint32_t> numbers) {
  std::vector<BlockId> ids;
  for (uint32_t number : numbers) ids.emplace_back(number);
  return ids;
}

std::vector<TokenId> Tokens(std::initializer_list<TokenId> tokens) { return tokens; }

// The ids of the longest present prefix.
std::vector<BlockId> Find(const RadixTree& tree, RootId root, std::vector<TokenId> tokens) {
  std::vector<BlockId> path;
  const uint32_t found = tree.Find(root, tokens, path);
  EXPECT_EQ(found, path.size());
  return path;
}

// One path of four blocks, ids 10 to 13, in most of the tests below.
class RadixTreeTest : public testing::Test {
 protected:
  RadixTreeTest() : root_(tree_.Root(Key(1))) {
    tree_.Insert(root_, kNoParent, Tokens({1, 1, 2, 2, 3, 3, 4, 4}), Ids({10, 11, 12, 13}));
  }
  ~RadixTreeTest() override { tree_.CheckInvariants(); }

  RadixTree tree_{kBlockTokens};
  RootId root_;
};

TEST_F(RadixTreeTest, FindsTheLongestWholeBlockPrefix) {
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 4, 4}), Ids({10, 11, 12, 13}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 4, 4, 5, 5}), Ids({10, 11, 12, 13}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3}), Ids({10, 11}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 9, 3, 3}), Ids({10}));
  EXPECT_EQ(Find(tree_, root_, {9, 1, 2, 2}), Ids({}));
  EXPECT_EQ(Find(tree_, root_, {1}), Ids({}));
  EXPECT_EQ(Find(tree_, root_, {}), Ids({}));
}

TEST_F(RadixTreeTest, SaysHowFarTheNextBlocksAreAlike) {
  const auto common = [&](BlockId after, std::vector<TokenId> tokens, uint32_t most = 8) {
    return tree_.CommonTokens(root_, after, tokens, most);
  };
  EXPECT_EQ(common(kNoParent, {1, 9}), 1u);
  EXPECT_EQ(common(kNoParent, {9, 1}), 0u);
  EXPECT_EQ(common(kNoParent, {1, 1}), 2u);
  EXPECT_EQ(common(kNoParent, {1}), 1u);
  EXPECT_EQ(common(BlockId(11), {3, 9}), 1u);  // within a run
  EXPECT_EQ(common(BlockId(13), {5, 5}), std::nullopt);
  tree_.Insert(root_, BlockId(11), Tokens({7, 7}), Ids({20}));
  tree_.Insert(root_, BlockId(11), Tokens({8, 6}), Ids({21}));
  EXPECT_EQ(common(BlockId(11), {3, 9}), 1u);
  EXPECT_EQ(common(BlockId(11), {7, 9}), 1u);
  EXPECT_EQ(common(BlockId(11), {8, 9}), 1u);
  EXPECT_EQ(common(BlockId(11), {3, 9}, 2), 0u);  // those that came last
  EXPECT_EQ(common(BlockId(11), {3, 9}, 0), std::nullopt);
  EXPECT_EQ(tree_.CommonTokens(tree_.Root(Key(2)), kNoParent, Tokens({1, 1}), 8), std::nullopt);
  tree_.RemoveRoot(Key(2));
}

TEST_F(RadixTreeTest, FindAppendsToThePath) {
  std::vector<BlockId> path = Ids({7});
  EXPECT_EQ(tree_.Find(root_, Tokens({1, 1, 2, 2}), path), 2u);
  EXPECT_EQ(path, Ids({7, 10, 11}));
}

TEST_F(RadixTreeTest, SplitsWherePathsPart) {
  EXPECT_EQ(tree_.node_count(), 1u);
  tree_.Insert(root_, BlockId(11), Tokens({8, 8, 9, 9}), Ids({20, 21}));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.node_count(), 3u);
  EXPECT_EQ(tree_.block_count(), 6u);
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 4, 4}), Ids({10, 11, 12, 13}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 8, 8, 9, 9}), Ids({10, 11, 20, 21}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 8, 8, 4, 4}), Ids({10, 11, 20}));
  EXPECT_EQ(tree_.parent(BlockId(20)), BlockId(11));
  EXPECT_EQ(tree_.parent(BlockId(12)), BlockId(11));
  EXPECT_EQ(tree_.parent(BlockId(10)), kNoParent);
}

TEST_F(RadixTreeTest, SplitsTwiceAndBeforeTheSplit) {
  tree_.Insert(root_, BlockId(12), Tokens({7, 7}), Ids({30}));
  tree_.Insert(root_, BlockId(10), Tokens({6, 6}), Ids({31}));
  tree_.Insert(root_, kNoParent, Tokens({5, 5}), Ids({32}));
  tree_.CheckInvariants();
  // [10] [11 12] [13] and one node for each of 30, 31, 32.
  EXPECT_EQ(tree_.node_count(), 6u);
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 4, 4}), Ids({10, 11, 12, 13}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 7, 7}), Ids({10, 11, 12, 30}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 6, 6}), Ids({10, 31}));
  EXPECT_EQ(Find(tree_, root_, {5, 5}), Ids({32}));
}

TEST_F(RadixTreeTest, AppendingBelowALeafExtendsItsRun) {
  tree_.Insert(root_, BlockId(13), Tokens({5, 5}), Ids({14}));
  tree_.Insert(root_, BlockId(14), Tokens({6, 6, 7, 7}), Ids({15, 16}));
  EXPECT_EQ(tree_.node_count(), 1u);
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}),
            Ids({10, 11, 12, 13, 14, 15, 16}));
}

TEST_F(RadixTreeTest, FindChildLooksOneBlockFurther) {
  tree_.Insert(root_, BlockId(11), Tokens({8, 8}), Ids({20}));
  EXPECT_EQ(tree_.FindChild(root_, kNoParent, Tokens({1, 1})), BlockId(10));
  EXPECT_EQ(tree_.FindChild(root_, kNoParent, Tokens({2, 2})), std::nullopt);
  EXPECT_EQ(tree_.FindChild(root_, BlockId(10), Tokens({2, 2})), BlockId(11));
  EXPECT_EQ(tree_.FindChild(root_, BlockId(10), Tokens({8, 8})), std::nullopt);
  EXPECT_EQ(tree_.FindChild(root_, BlockId(11), Tokens({3, 3})), BlockId(12));
  EXPECT_EQ(tree_.FindChild(root_, BlockId(11), Tokens({8, 8})), BlockId(20));
  EXPECT_EQ(tree_.FindChild(root_, BlockId(20), Tokens({3, 3})), std::nullopt);
}

TEST_F(RadixTreeTest, RemoveShrinksTheRunThenTheNodeGoes) {
  tree_.Insert(root_, BlockId(11), Tokens({8, 8}), Ids({20}));
  EXPECT_TRUE(tree_.has_children(BlockId(11)));
  EXPECT_TRUE(tree_.has_children(BlockId(12)));
  EXPECT_FALSE(tree_.has_children(BlockId(13)));
  tree_.Remove(BlockId(13));
  tree_.CheckInvariants();
  EXPECT_FALSE(tree_.contains(BlockId(13)));
  EXPECT_FALSE(tree_.has_children(BlockId(12)));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3, 4, 4}), Ids({10, 11, 12}));
  tree_.Remove(BlockId(12));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.node_count(), 2u);
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 3, 3}), Ids({10, 11}));
  // Not merged with the single child that is left, and an id may come back elsewhere.
  tree_.Insert(root_, BlockId(20), Tokens({4, 4}), Ids({13}));
  EXPECT_EQ(tree_.node_count(), 2u);
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2, 8, 8, 4, 4}), Ids({10, 11, 20, 13}));
  for (uint32_t number : {13, 20, 11, 10}) tree_.Remove(BlockId(number));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.node_count(), 0u);
  EXPECT_EQ(tree_.block_count(), 0u);
  EXPECT_TRUE(tree_.empty(root_));
}

TEST_F(RadixTreeTest, RootsShareNothing) {
  Digest near = Key(1);
  near.front() = 1;  // differs in one byte at the far end
  const RootId other = tree_.Root(near);
  EXPECT_NE(other, root_);
  EXPECT_EQ(tree_.Root(Key(1)), root_);
  EXPECT_EQ(tree_.FindRoot(near), other);
  EXPECT_EQ(tree_.FindRoot(Key(9)), std::nullopt);
  EXPECT_EQ(Find(tree_, other, {1, 1, 2, 2}), Ids({}));
  tree_.Insert(other, kNoParent, Tokens({1, 1}), Ids({50}));
  EXPECT_EQ(Find(tree_, other, {1, 1, 2, 2}), Ids({50}));
  EXPECT_EQ(Find(tree_, root_, {1, 1, 2, 2}), Ids({10, 11}));
  EXPECT_EQ(tree_.root(BlockId(50)), other);
  EXPECT_EQ(tree_.root(BlockId(10)), root_);
}

TEST_F(RadixTreeTest, AnEmptyRootCanGo) {
  const RootId other = tree_.Root(Key(2));
  EXPECT_TRUE(tree_.empty(other));
  tree_.RemoveRoot(Key(2));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.FindRoot(Key(2)), std::nullopt);
  EXPECT_EQ(tree_.Root(Key(3)), other);  // its number is used again
  EXPECT_FALSE(tree_.empty(root_));
}

TEST_F(RadixTreeTest, TellsTokensOfABlock) {
  tree_.Insert(root_, BlockId(11), Tokens({8, 9}), Ids({20}));
  const auto tokens = [this](uint32_t block) {
    const auto span = tree_.tokens(BlockId(block));
    return std::vector<TokenId>(span.begin(), span.end());
  };
  EXPECT_EQ(tokens(10), Tokens({1, 1}));
  EXPECT_EQ(tokens(13), Tokens({4, 4}));
  EXPECT_EQ(tokens(20), Tokens({8, 9}));
}

TEST_F(RadixTreeTest, ContainsOnlyInsertedBlocks) {
  EXPECT_TRUE(tree_.contains(BlockId(10)));
  EXPECT_FALSE(tree_.contains(BlockId(9)));
  EXPECT_FALSE(tree_.contains(BlockId(1000)));
  EXPECT_FALSE(tree_.contains(BlockId::None()));
}

TEST_F(RadixTreeTest, NothingToInsertChangesNothing) {
  tree_.Insert(root_, BlockId(11), {}, {});
  EXPECT_EQ(tree_.node_count(), 1u);
}

TEST(RadixTree, FindsDifferencesAnywhereInALongRun) {
  // Longer than several of the pieces that runs are compared in.
  constexpr size_t kBlocks = 700;
  RadixTree tree(16);
  const RootId root = tree.Root(Key(1));
  std::vector<TokenId> tokens(kBlocks * 16);
  std::vector<BlockId> ids;
  ids.reserve(kBlocks);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 7);
  for (uint32_t i = 0; i < kBlocks; ++i) ids.emplace_back(i);
  tree.Insert(root, kNoParent, tokens, ids);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    std::vector<TokenId> query = tokens;
    query[block * 16 + block % 16] ^= 1;
    EXPECT_EQ(Find(tree, root, query).size(), block);
  }
  EXPECT_EQ(Find(tree, root, tokens), ids);
}

uint64_t AlwaysSeven(uint32_t, std::span<const TokenId>) { return 7; }

TEST(RadixTree, EqualHashesOfDifferentTokensStayApart) {
  RadixTree tree(1, AlwaysSeven);
  const RootId root = tree.Root(Key(1));
  const RootId other = tree.Root(Key(2));
  // 100 siblings below the root, 100 below the first of them, and some in another root: one hash.
  for (uint32_t i = 0; i < 100; ++i) {
    tree.Insert(root, kNoParent, Tokens({TokenId(i)}), Ids({i}));
    tree.Insert(other, kNoParent, Tokens({TokenId(i)}), Ids({200 + i}));
  }
  for (uint32_t i = 0; i < 100; ++i) {
    tree.Insert(root, BlockId(0), Tokens({TokenId(i)}), Ids({100 + i}));
  }
  tree.CheckInvariants();
  for (uint32_t i = 1; i < 100; ++i) tree.Remove(BlockId(i));
  tree.CheckInvariants();
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(Find(tree, root, {0, TokenId(i)}), Ids({0, 100 + i}));
    EXPECT_EQ(Find(tree, root, {TokenId(i)}), i == 0 ? Ids({0}) : Ids({}));
    EXPECT_EQ(Find(tree, other, {TokenId(i)}), Ids({200 + i}));
  }
  EXPECT_EQ(Find(tree, root, {100}), Ids({}));
}

// Inserts one block of tokens that differ from every other block's.
void InsertOne(RadixTree& tree, RootId root, BlockId parent, uint32_t id) {
  std::vector<TokenId> tokens(tree.block_tokens());
  tokens.back() = static_cast<TokenId>(id);
  tree.Insert(root, parent, tokens, Ids({id}));
}

// The two worst shapes for memory: every block a node of its own, and runs that just grew or
// shrank.
constexpr uint64_t kBytesPerBlockMax = 256;  // tokens included, at 16 tokens a block

TEST(RadixTreeMemory, SingleBlockNodesStayWithinTheLimit) {
  constexpr uint32_t kNodes = 20'000;
  RadixTree tree(16);
  const RootId root = tree.Root(Key(1));
  for (uint32_t i = 0; i < kNodes; ++i) {
    InsertOne(tree, root, kNoParent, i);
    if (i >= 100) {
      EXPECT_LE(tree.metadata_bytes(), kBytesPerBlockMax * (i + 1));
    }
  }
  EXPECT_EQ(tree.node_count(), kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) {
    InsertOne(tree, root, BlockId(i), kNodes);
    tree.Remove(BlockId(kNodes));
  }
  EXPECT_LE(tree.metadata_bytes(), kBytesPerBlockMax * kNodes);
}

TEST(RadixTreeMemory, RunsStayWithinTheLimitAsTheyGrowAndShrink) {
  constexpr uint32_t kBlocks = 10'000;
  constexpr uint32_t kShrunkBlocks = 4'200;  // a quarter of the largest capacity, and a few
  RadixTree tree(16);
  const RootId root = tree.Root(Key(1));
  for (uint32_t i = 0; i < kBlocks; ++i) {
    InsertOne(tree, root, i == 0 ? kNoParent : BlockId(i - 1), i);
    if (i >= 100) {
      EXPECT_LE(tree.metadata_bytes(), kBytesPerBlockMax * (i + 1));
    }
  }
  EXPECT_EQ(tree.node_count(), 1u);
  for (uint32_t i = kBlocks - 1; i >= kShrunkBlocks; --i) {
    tree.Remove(BlockId(i));
    EXPECT_LE(tree.metadata_bytes(), kBytesPerBlockMax * i);
  }
  // What a run gives up goes back to the heap, apart from the table of ids.
  for (uint32_t i = kShrunkBlocks - 1; i >= 100; --i) tree.Remove(BlockId(i));
  EXPECT_LE(tree.metadata_bytes(), 100 * kBytesPerBlockMax + uint64_t{2} * kBlocks * 8);
}

using RadixTreeDeathTest = RadixTreeTest;

TEST_F(RadixTreeDeathTest, StopsOnCallsAgainstTheContract) {
  EXPECT_DEATH(tree_.Remove(BlockId(12)), "with children");
  EXPECT_DEATH(tree_.Remove(BlockId(99)), "no such block");
  EXPECT_DEATH(tree_.Insert(root_, BlockId(11), Tokens({3, 3}), Ids({40})), "already present");
  EXPECT_DEATH(tree_.Insert(root_, kNoParent, Tokens({1, 1}), Ids({40})), "already present");
  EXPECT_DEATH(tree_.Insert(root_, BlockId(13), Tokens({5, 5}), Ids({10})), "id is in use");
  EXPECT_DEATH(tree_.Insert(root_, BlockId(13), Tokens({5, 5, 6, 6}), Ids({40, 40})),
               "id is in use");
  EXPECT_DEATH(tree_.Insert(root_, BlockId(13), Tokens({5, 5, 6}), Ids({40})), "block_tokens");
  EXPECT_DEATH(tree_.Find(RootId(77), Tokens({1, 1}), *std::make_unique<std::vector<BlockId>>()),
               "root.number");
  EXPECT_DEATH(tree_.FindChild(tree_.Root(Key(2)), BlockId(10), Tokens({2, 2})), "root.number");
  EXPECT_DEATH(tree_.RemoveRoot(Key(1)), "still has blocks");
  EXPECT_DEATH(RadixTree(0), "block_tokens > 0");
}

}  // namespace
}  // namespace quire::index

// The descendants and ancestors of a block, beside a search over all blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/prng.h"
#include "index/radix_tree.h"

namespace quire::index {
namespace {

constexpr uint32_t kBlockTokens = 2;

// Parents before children.
std::vector<BlockId> Subtree(const RadixTree& tree, BlockId root) {
  std::vector<BlockId> shown = {root};
  for (size_t i = 0; i < shown.size(); ++i) {
    for (BlockId child = tree.first_child(shown[i]); !child.is_none();
         child = tree.next_sibling(child)) {
      shown.push_back(child);
    }
  }
  return shown;
}

TEST(Subtree, HoldsWhatContinuesABlockParentsFirst) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    RadixTree tree(kBlockTokens);
    const RootId root = tree.Root({1});
    std::vector<BlockId> present;
    uint32_t next = 0;
    for (int step = 0; step < 200; ++step) {
      if (!present.empty() && prng.NextChance(4)) {
        const BlockId block = present[prng.NextBelow(present.size())];
        if (tree.has_children(block)) continue;
        tree.Remove(block);
        std::erase(present, block);
        continue;
      }
      const BlockId parent = present.empty() || prng.NextChance(6)
                                 ? BlockId::None()
                                 : present[prng.NextBelow(present.size())];
      const auto token = static_cast<TokenId>(next);
      const std::vector<TokenId> tokens = {token, token};
      const BlockId block(next++);
      tree.Insert(root, parent, tokens, {&block, 1});
      present.push_back(block);
    }
    tree.CheckInvariants();
    std::map<BlockId, std::set<BlockId>> expected;
    for (const BlockId block : present) {
      for (BlockId above = block; !above.is_none(); above = tree.parent(above)) {
        expected[above].insert(block);
      }
    }
    for (const BlockId block : present) {
      const std::vector<BlockId> shown = Subtree(tree, block);
      EXPECT_EQ(shown.front(), block);
      EXPECT_EQ(std::set(shown.begin(), shown.end()), expected[block]);
      EXPECT_EQ(shown.size(), expected[block].size());
      for (size_t i = 1; i < shown.size(); ++i) {
        const auto parent = std::ranges::find(shown, tree.parent(shown[i]));
        EXPECT_LT(parent - shown.begin(), static_cast<ptrdiff_t>(i));
      }
      for (BlockId above = block; !above.is_none(); above = tree.parent(above)) {
        EXPECT_EQ(tree.AncestorAt(block, tree.depth(above)), above);
      }
    }
  }
}

}  // namespace
}  // namespace quire::index

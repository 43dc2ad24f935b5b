// The radix tree in lock step with a sorted map from whole paths to ids, under random calls over a
// tiny alphabet, so that paths often share blocks and branch.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <map>
#include <utility>

#include "index/radix_tree.h"

namespace quire::index {
namespace {

using Path = std::vector<TokenId>;

// What the tree promises, said naively: a map from every present path to the block at its end.
class Model {
 public:
  explicit Model(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  std::vector<BlockId> Find(uint32_t root, const Path& tokens) const {
    std::vector<BlockId> path;
    for (size_t end = block_tokens_; end <= tokens.size(); end += block_tokens_) {
      const auto found = blocks_.find({root, Path(tokens.begin(), tokens.begin() + end)});
      if (found == blocks_.end()) break;
      path.push_back(found->second);
    }
    return path;
  }

  void Insert(uint32_t root, const Path& path, BlockId block) { blocks_[{root, path}] = block; }
  void Remove(uint32_t root, const Path& path) { blocks_.erase({root, path}); }

  bool HasChildren(uint32_t root, const Path& path) const {
    const auto next = blocks_.upper_bound({root, path});
    return next != blocks_.end() && next->first.first == root &&
           next->first.second.size() > path.size() &&
           std::equal(path.begin(), path.end(), next->first.second.begin());
  }

  const std::map<std::pair<uint32_t, Path>, BlockId>& blocks() const { return blocks_; }

 private:
  const uint32_t block_tokens_;
  std::map<std::pair<uint32_t, Path>, BlockId> blocks_;
};

class LockStep {
 public:
  LockStep(uint32_t block_tokens, RadixTree::BlockHash hash)
      : block_tokens_(block_tokens),
        tree_(hash == nullptr ? std::make_unique<RadixTree>(block_tokens)
                              : std::make_unique<RadixTree>(block_tokens, hash)),
        model_(block_tokens) {
    for (uint8_t key : {0, 1}) roots_.push_back(tree_->Root(Digest{key}));
  }

  void Step() {
    switch (*rc::gen::weightedElement<int>({{5, 0}, {5, 1}, {2, 2}})) {
      case 0: return Insert();
      case 1: return Remove();
      default: return Look();
    }
  }

  void CheckAll() const {
    tree_->CheckInvariants();
    RC_ASSERT(tree_->block_count() == model_.blocks().size());
    RC_ASSERT(tree_->node_count() <= tree_->block_count());
    for (const auto& [key, block] : model_.blocks()) CheckBlock(key.first, key.second, block);
  }

 private:
  Path SomeTokens() const {
    // Full size from the first case on: small trees split too seldom.
    const auto length = rc::gen::inRange<size_t>(0, 7 * block_tokens_ + 1);
    const auto token = rc::gen::inRange<TokenId>(0, 2);
    return *rc::gen::resize(
        rc::kNominalSize,
        rc::gen::container<Path>(*rc::gen::resize(rc::kNominalSize, length), token));
  }

  std::vector<BlockId> FindInBoth(uint32_t root, const Path& tokens) const {
    std::vector<BlockId> path;
    const uint32_t found = tree_->Find(roots_[root], tokens, path);
    RC_ASSERT(found == path.size());
    RC_ASSERT(path == model_.Find(root, tokens));
    return path;
  }

  // Whatever of a random path is missing is added, sometimes only its first block.
  void Insert() {
    const auto root = *rc::gen::inRange<uint32_t>(0, 2);
    Path tokens = SomeTokens();
    tokens.resize(tokens.size() / block_tokens_ * block_tokens_);
    const std::vector<BlockId> path = FindInBoth(root, tokens);
    const size_t begin = path.size() * block_tokens_;
    if (begin < tokens.size() && *rc::gen::arbitrary<bool>()) tokens.resize(begin + block_tokens_);
    std::vector<BlockId> added;
    for (size_t end = begin + block_tokens_; end <= tokens.size(); end += block_tokens_) {
      added.push_back(NewId());
      model_.Insert(root, Path(tokens.begin(), tokens.begin() + end), added.back());
    }
    tree_->Insert(roots_[root], path.empty() ? BlockId::None() : path.back(),
                  std::span(tokens).subspan(begin), added);
  }

  // A random block and whatever hangs below it, from the ends upwards.
  void Remove() {
    if (model_.blocks().empty()) return;
    auto at = model_.blocks().begin();
    std::advance(at, *rc::gen::inRange<size_t>(0, model_.blocks().size()));
    const auto [root, top] = at->first;
    while (true) {
      auto last = model_.blocks().find({root, top});
      while (model_.HasChildren(root, last->first.second)) ++last;
      const Path path = last->first.second;
      const BlockId block = last->second;
      tree_->Remove(block);
      model_.Remove(root, path);
      unused_.push_back(block);
      if (path == top) return;
      if (*rc::gen::arbitrary<bool>()) return;
    }
  }

  void Look() const { FindInBoth(*rc::gen::inRange<uint32_t>(0, 2), SomeTokens()); }

  void CheckBlock(uint32_t root, const Path& path, BlockId block) const {
    RC_ASSERT(tree_->contains(block));
    RC_ASSERT(tree_->root(block) == roots_[root]);
    RC_ASSERT(tree_->has_children(block) == model_.HasChildren(root, path));
    const auto last = std::span(path).last(block_tokens_);
    RC_ASSERT(std::ranges::equal(tree_->tokens(block), last));
    BlockId parent;
    if (path.size() > block_tokens_) {
      parent = model_.blocks().at({root, Path(path.begin(), path.end() - block_tokens_)});
    }
    RC_ASSERT(tree_->parent(block) == parent);
    RC_ASSERT(tree_->FindChild(roots_[root], parent, last) == block);
  }

  BlockId NewId() {
    if (unused_.empty()) return BlockId(next_id_++);
    const BlockId id = unused_.front();
    unused_.erase(unused_.begin());
    return id;
  }

  const uint32_t block_tokens_;
  const std::unique_ptr<RadixTree> tree_;
  Model model_;
  std::vector<RootId> roots_;
  std::vector<BlockId> unused_;
  uint32_t next_id_ = 0;
};

void RunLockStep(RadixTree::BlockHash hash) {
  LockStep both(*rc::gen::inRange<uint32_t>(1, 4), hash);
  for (int step = 0; step < 150; ++step) {
    both.Step();
    both.CheckAll();
  }
}

uint64_t OneHash(uint32_t, std::span<const TokenId>) { return 0; }
uint64_t TwoHashes(uint32_t, std::span<const TokenId> tokens) { return tokens.back() & 1; }

RC_GTEST_PROP(RadixTreeProperty, EqualsAMapOfPaths, ()) { RunLockStep(nullptr); }
RC_GTEST_PROP(RadixTreeProperty, EqualsAMapOfPathsWhenAllHashesCollide, ()) {
  RunLockStep(OneHash);
}
RC_GTEST_PROP(RadixTreeProperty, EqualsAMapOfPathsWhenHalfTheHashesCollide, ()) {
  RunLockStep(TwoHashes);
}

}  // namespace
}  // namespace quire::index

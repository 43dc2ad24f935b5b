// Finds published blocks by their tokens: a radix tree whose edges are whole blocks.
//
// A node holds a run of consecutive blocks, tokens beside tokens, so that a long shared prefix is
// compared like one array. Its children all continue after its last block; a path that leaves a run
// in the middle splits it. A hash only finds candidates: returned blocks have been compared token
// by token.
#ifndef QUIRE_INDEX_RADIX_TREE_H_
#define QUIRE_INDEX_RADIX_TREE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "index/nodes.h"
#include "index/pieces.h"
#include "quire/identity.h"

namespace quire::index {

/// The root of one identity's blocks; blocks of different roots are never on one path.
using RootId = Id<struct RootTag, uint32_t>;

/// Tokens to block ids. Block ids should be small, dense numbers: a table is indexed by them.
///
/// Tokens are overwritten when they are removed: what a tenant asked to forget is not left on the
/// heap.
///
/// Errors:   a miss is a value, and calls against the contract stop (QUIRE_CHECK). std::bad_alloc
///           from Root, Insert and calls that append to a vector: the tree is as it was
/// Threads:  not synchronised; const methods may run together, the others need the caller's lock
/// Lifetime: returned spans hold until the next non-const call, and must not be passed to one
/// Source:   RadixAttention, arXiv 2312.07104; SPEC S1
class RadixTree {
 public:
  /// Hash of a block's tokens below the node `parent`. Only speed depends on how few collide.
  using BlockHash = uint64_t (*)(uint32_t parent, std::span<const TokenId> tokens);

  explicit RadixTree(uint32_t block_tokens);
  /// For tests, which force collisions.
  RadixTree(uint32_t block_tokens, BlockHash hash);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  /// The root of an identity, made if it is new. Keys are compared whole.
  RootId Root(const Digest& key);
  /// The same without making one.
  std::optional<RootId> FindRoot(const Digest& key) const;
  /// Forgets a root without blocks; its id may be given to another identity afterwards.
  void RemoveRoot(const Digest& key);
  /// No block hangs below this root.
  bool empty(RootId root) const;

  /// Appends the ids of the longest run of present blocks that is a prefix of `tokens`, first block
  /// first, and returns how many there are.
  ///
  /// Shape: tokens [n]; what is left after the last whole block is not looked at
  /// Cost:  one comparison of the tokens found, one hash lookup per node; allocates only in `path`
  uint32_t Find(RootId root, std::span<const TokenId> tokens, std::vector<BlockId>& path) const {
    return Find(root, BlockId::None(), tokens, path);
  }
  /// The same after a block of the tree (none: after the root).
  uint32_t Find(RootId root, BlockId after, std::span<const TokenId> tokens,
                std::vector<BlockId>& path) const;

  /// The one block after `parent` (none: the first of the root) with these tokens.
  ///
  /// Shape: block_tokens [block_tokens]
  std::optional<BlockId> FindChild(RootId root, BlockId parent,
                                   std::span<const TokenId> block_tokens) const;

  /// Most tokens that a block after `after` (none: the first of the root) has in common with the
  /// start of `tokens`; nothing: no block follows there.
  ///
  /// Cost: looks at `children_max` of them
  std::optional<uint32_t> CommonTokens(RootId root, BlockId after, std::span<const TokenId> tokens,
                                       uint32_t children_max) const;

  /// Adds consecutive blocks after `parent` (none: at the root). The first must not be present
  /// there already and the ids must be unused. `tokens` must not point into this tree.
  ///
  /// Shape: tokens [blocks * block_tokens]
  /// Cost:  O(blocks), amortised; where a run is split, O(its length) once
  void Insert(RootId root, BlockId parent, std::span<const TokenId> tokens,
              std::span<const BlockId> blocks);

  /// Takes out a block that has no children.
  ///
  /// A node left with a single child stays as it is: removal needs no search for that child, and
  /// where paths parted once they part again (another question about the same document). The price
  /// is one hash lookup where one comparison would do.
  ///
  /// Cost: O(1), amortised
  void Remove(BlockId block);

  bool contains(BlockId block) const;
  /// Of a block that is present: whether another follows it, the one before it (none: it is the
  /// first), how many there are before it, its root and its tokens [block_tokens].
  bool has_children(BlockId block) const;
  BlockId parent(BlockId block) const;
  uint32_t depth(BlockId block) const;
  RootId root(BlockId block) const;
  std::span<const TokenId> tokens(BlockId block) const;
  /// One of the blocks after it, and the next of those after the same parent: with parent(), a way
  /// over all that continues a block, which blocks may leave meanwhile. None: that was the last.
  BlockId first_child(BlockId block) const;
  BlockId next_sibling(BlockId block) const;
  /// The block of its path with so many before it; itself, if those are its own.
  ///
  /// Cost: O(nodes between them)
  BlockId AncestorAt(BlockId block, uint32_t depth) const;

  uint32_t block_tokens() const { return block_tokens_; }
  uint64_t block_count() const { return block_count_; }
  /// Nodes that hold blocks; roots are not counted.
  uint64_t node_count() const;
  uint64_t root_count() const;
  /// Heap bytes of the tree, spare capacity and allocation headers included.
  ///
  /// Cost: O(1)
  uint64_t metadata_bytes() const;

  /// Stops if anything about the tree is wrong. For tests and debugging.
  ///
  /// Cost: walks every node and block
  void CheckInvariants() const;

 private:
  // Where a block lies. The depth in the path, unlike the offset in the node, survives a split.
  struct Location {
    uint32_t node = kNoNode;
    uint32_t depth = 0;
  };
  struct Tables;

  void CheckNode(uint32_t number, std::vector<uint32_t>& children_seen) const;
  void CheckRoot(RootId root) const;
  const Location& LocationOf(BlockId block) const;
  uint32_t OffsetOf(const Location& location) const;
  std::optional<uint32_t> FindChildNode(uint32_t parent, std::span<const TokenId> tokens) const;

  uint32_t Hash(uint32_t parent, std::span<const TokenId> tokens) const;
  std::span<const TokenId> FirstBlock(const Node& node) const;
  BlockId FirstBlockOf(uint32_t number) const {
    return number == kNoNode ? BlockId::None() : nodes_[number].blocks.front();
  }
  void ReserveIds(std::span<const BlockId> blocks);
  void AppendToRun(uint32_t number, std::span<const TokenId> tokens,
                   std::span<const BlockId> blocks);
  void InsertLeaf(uint32_t number, uint32_t blocks_before, std::span<const TokenId> tokens,
                  std::span<const BlockId> blocks);
  void SplitAfter(uint32_t number, Run upper, Run lower);
  void Locate(uint32_t number, uint64_t first);

  const uint32_t block_tokens_;
  const BlockHash hash_;
  Nodes nodes_;
  Pieces<Location, 128> locations_;  // by block id
  uint64_t block_count_ = 0;
  std::unique_ptr<Tables> tables_;
};

}  // namespace quire::index

#endif  // QUIRE_INDEX_RADIX_TREE_H_

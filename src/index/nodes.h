// The nodes of a radix tree: how they hang together, and the runs of blocks in them.
#ifndef QUIRE_INDEX_NODES_H_
#define QUIRE_INDEX_NODES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/wiped_vector.h"
#include "index/pieces.h"
#include "quire/identity.h"

namespace quire::index {

/// No node.
inline constexpr uint32_t kNoNode = UINT32_MAX;

/// What an allocation takes from the heap: glibc adds a header of 8 bytes, rounds up to 16 and
/// hands out 32 at least.
constexpr uint64_t AllocationBytes(uint64_t bytes) {
  return std::max<uint64_t>(32, (bytes + 8 + 15) / 16 * 16);
}
/// With a pointer to each piece, whose table may be twice as long as it needs to be.
template <typename Pieces>
uint64_t HeapBytesOf(const Pieces& pieces) {
  return pieces.piece_count() * (AllocationBytes(Pieces::kPieceBytes) + 2 * sizeof(void*));
}

/// Consecutive blocks.
struct Run {
  WipedVector<TokenId> tokens;  // [blocks, block_tokens]
  std::vector<BlockId> blocks;
};

/// Kinds of node: a root (root == itself, no blocks), one that holds blocks, a free one (root ==
/// kNoNode; `parent` links the free list).
struct Node : Run {
  uint32_t parent = kNoNode;
  uint32_t root = kNoNode;
  uint32_t depth = 0;     // blocks of the path before this node
  uint32_t children = 0;  // nodes after the last block
  uint32_t first_child = kNoNode;
  uint32_t next_sibling = kNoNode;  // of its parent's children, latest first
  uint32_t previous_sibling = kNoNode;
};

/// Nodes by number. Numbers of nodes that went are given again; growing moves no node. It knows
/// what all runs take of the heap.
///
/// Errors:  std::bad_alloc from Reserve alone: nothing changes
/// Threads: as a vector
class Nodes {
 public:
  /// Numbers that were ever given are lower.
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  const Node& operator[](uint32_t number) const { return nodes_[number]; }
  Node& operator[](uint32_t number) { return nodes_[number]; }

  /// The numbers that Add gives next; it needs no memory for them.
  struct Next {
    uint32_t first;
    uint32_t second;
  };
  Next Reserve();
  /// A node without blocks below `parent` (kNoNode: a root), which does not know it as a child yet.
  uint32_t Add(uint32_t parent, uint32_t root);
  void Free(uint32_t number);
  void AttachChild(uint32_t parent, uint32_t number);
  void DetachChild(uint32_t number);
  void SetRun(uint32_t number, Run run);
  /// Takes out the last block of a run that has others. Its tokens are overwritten.
  void PopBlock(uint32_t number, uint32_t block_tokens);

  /// Heap bytes, spare capacity and allocation headers included. Cost: O(1)
  uint64_t bytes() const { return run_bytes_ + HeapBytesOf(nodes_); }
  /// Stops if the free list, or what runs take, is not what the nodes say. For tests.
  void CheckInvariants() const;

 private:
  static uint64_t HeapBytes(const Run& run);

  Pieces<Node, 8> nodes_;         // growing leaves no slack
  uint32_t free_node_ = kNoNode;  // head of the list of free nodes
  uint64_t run_bytes_ = 0;        // sum of HeapBytes
};

}  // namespace quire::index

#endif  // QUIRE_INDEX_NODES_H_

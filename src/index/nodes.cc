#include "index/nodes.h"

#include <span>
#include <utility>

#include "base/check.h"

namespace quire::index {

Nodes::Next Nodes::Reserve() {
  const uint32_t fresh = size();
  QUIRE_CHECK(fresh < kNoNode - 2);
  nodes_.Reserve(nodes_.size() + 2);
  if (free_node_ == kNoNode) return {.first = fresh, .second = fresh + 1};
  const uint32_t after = nodes_[free_node_].parent;
  return {.first = free_node_, .second = after == kNoNode ? fresh : after};
}

uint32_t Nodes::Add(uint32_t parent, uint32_t root) {
  uint32_t number = free_node_;
  if (number == kNoNode) {
    number = size();
    nodes_.Grow(nodes_.size() + 1);
  } else {
    free_node_ = nodes_[number].parent;
  }
  Node& node = nodes_[number];
  node.parent = parent;
  node.root = root;
  node.depth = parent == kNoNode
                   ? 0
                   : nodes_[parent].depth + static_cast<uint32_t>(nodes_[parent].blocks.size());
  return number;
}

void Nodes::Free(uint32_t number) {
  Node& node = nodes_[number];
  run_bytes_ -= HeapBytes(node);
  node = Node();
  node.parent = free_node_;
  free_node_ = number;
}

void Nodes::AttachChild(uint32_t parent, uint32_t number) {
  Node& above = nodes_[parent];
  Node& node = nodes_[number];
  node.parent = parent;
  node.previous_sibling = kNoNode;
  node.next_sibling = above.first_child;
  if (above.first_child != kNoNode) nodes_[above.first_child].previous_sibling = number;
  above.first_child = number;
  ++above.children;
}

void Nodes::DetachChild(uint32_t number) {
  const Node& node = nodes_[number];
  Node& above = nodes_[node.parent];
  (node.previous_sibling == kNoNode ? above.first_child
                                    : nodes_[node.previous_sibling].next_sibling) =
      node.next_sibling;
  if (node.next_sibling != kNoNode) {
    nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  }
  --above.children;
}

void Nodes::SetRun(uint32_t number, Run run) {
  Node& node = nodes_[number];
  run_bytes_ -= HeapBytes(node);
  node.tokens = std::move(run.tokens);
  node.blocks = std::move(run.blocks);
  run_bytes_ += HeapBytes(node);
}

void Nodes::PopBlock(uint32_t number, uint32_t block_tokens) {
  Node& node = nodes_[number];
  node.blocks.pop_back();
  Wipe(std::span(node.tokens).last(block_tokens));
  node.tokens.resize(node.tokens.size() - block_tokens);
  // Runs double when they grow and never keep three times the memory of their blocks.
  if (node.blocks.size() <= (node.blocks.capacity() + 1) / 3) {
    run_bytes_ -= HeapBytes(node);
    node.blocks.shrink_to_fit();
    node.tokens.shrink_to_fit();
    run_bytes_ += HeapBytes(node);
  }
}

uint64_t Nodes::HeapBytes(const Run& run) {
  if (run.blocks.capacity() == 0) return 0;
  return AllocationBytes(run.blocks.capacity() * sizeof(BlockId)) +
         AllocationBytes(run.tokens.capacity() * sizeof(TokenId));
}

void Nodes::CheckInvariants() const {
  uint64_t free_nodes = 0;
  uint64_t run_bytes = 0;
  for (uint32_t number = 0; number < size(); ++number) {
    const Node& node = nodes_[number];
    run_bytes += HeapBytes(node);
    if (node.root != kNoNode) continue;
    ++free_nodes;
    QUIRE_CHECK(node.blocks.empty() && node.tokens.empty() && node.children == 0);
  }
  QUIRE_CHECK(run_bytes == run_bytes_);
  uint64_t listed = 0;
  for (uint32_t number = free_node_; number != kNoNode; number = nodes_[number].parent) {
    QUIRE_CHECK(nodes_[number].root == kNoNode && ++listed <= free_nodes);
  }
  QUIRE_CHECK(listed == free_nodes);
}

}  // namespace quire::index

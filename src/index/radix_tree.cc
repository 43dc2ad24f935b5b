#include "index/radix_tree.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "base/check.h"
#include "index/split_set.h"

namespace quire::index {
namespace {

// Longer runs are compared in pieces of 4 KiB: at full speed, and never much past a difference.
constexpr uint32_t kPieceTokens = 1024;

// What absl::Hash sees of a block.
struct HashedBlock {
  uint32_t parent;
  std::span<const TokenId> tokens;

  template <typename H>
  friend H AbslHashValue(H state, const HashedBlock& block) {
    state = H::combine_contiguous(std::move(state), block.tokens.data(), block.tokens.size());
    return H::combine(std::move(state), block.parent);
  }
};

uint64_t HashBlock(uint32_t parent, std::span<const TokenId> tokens) {
  return absl::Hash<HashedBlock>{}({.parent = parent, .tokens = tokens});
}

bool Equal(const TokenId* a, const TokenId* b, uint64_t tokens) {
  return std::memcmp(a, b, tokens * sizeof(TokenId)) == 0;
}

// How many leading blocks of a and b [blocks, block_tokens] are the same.
uint64_t EqualBlocks(const TokenId* a, const TokenId* b, uint64_t blocks, uint32_t block_tokens) {
  const uint64_t piece = std::max<uint64_t>(1, kPieceTokens / block_tokens);
  uint64_t equal = 0;
  for (uint64_t step : {piece, uint64_t{1}}) {
    while (blocks - equal >= step &&
           Equal(a + equal * block_tokens, b + equal * block_tokens, step * block_tokens)) {
      equal += step;
    }
  }
  return equal;
}

}  // namespace

// The two hash tables. Nothing ever iterates over them, so their order decides nothing. Abseil's do
// not survive a failed allocation.
struct RadixTree::Tables {
  // Keys are hashes themselves.
  struct FirstBits {
    size_t operator()(const Digest& key) const {
      size_t bits = 0;
      std::memcpy(&bits, key.data(), sizeof(bits));
      return bits;
    }
  };

  // Every node that holds blocks, found by its parent and first block.
  SplitSet children;
  std::unordered_map<Digest, uint32_t, FirstBits> roots;
};

RadixTree::RadixTree(uint32_t block_tokens) : RadixTree(block_tokens, HashBlock) {}

RadixTree::RadixTree(uint32_t block_tokens, BlockHash hash)
    : block_tokens_(block_tokens), hash_(hash), tables_(std::make_unique<Tables>()) {
  QUIRE_CHECK(block_tokens > 0);
}

RadixTree::~RadixTree() = default;

RootId RadixTree::Root(const Digest& key) {
  if (const auto root = FindRoot(key)) return *root;
  tables_->roots.emplace(key, nodes_.Reserve().first);
  const uint32_t number = nodes_.Add(kNoNode, kNoNode);
  nodes_[number].root = number;
  return RootId(number);
}

std::optional<RootId> RadixTree::FindRoot(const Digest& key) const {
  const auto found = tables_->roots.find(key);
  if (found == tables_->roots.end()) return std::nullopt;
  return RootId(found->second);
}

void RadixTree::RemoveRoot(const Digest& key) {
  const auto found = tables_->roots.find(key);
  QUIRE_CHECK(found != tables_->roots.end());
  QUIRE_CHECK_MSG(nodes_[found->second].children == 0, "the root still has blocks");
  nodes_.Free(found->second);
  tables_->roots.erase(found);
}

bool RadixTree::empty(RootId root) const {
  CheckRoot(root);
  return nodes_[root.number()].children == 0;
}

uint32_t RadixTree::Find(RootId root, BlockId after, std::span<const TokenId> tokens,
                         std::vector<BlockId>& path) const {
  CheckRoot(root);
  const uint64_t wanted = tokens.size() / block_tokens_;
  uint64_t found = 0;
  uint32_t number = root.number();
  uint64_t begin = 0;     // of the node's run, what is left to look at
  uint64_t compared = 0;  // blocks from there on that are known to be the same
  if (!after.is_none()) {
    const Location& location = LocationOf(after);
    number = location.node;
    begin = OffsetOf(location) + uint64_t{1};
    QUIRE_CHECK(nodes_[number].root == root.number());
  }
  while (true) {
    const Node& node = nodes_[number];
    const uint64_t rest = std::min<uint64_t>(node.blocks.size() - begin, wanted - found);
    const uint64_t equal =
        compared + EqualBlocks(node.tokens.data() + (begin + compared) * block_tokens_,
                               tokens.data() + (found + compared) * block_tokens_, rest - compared,
                               block_tokens_);
    path.insert(path.end(), node.blocks.data() + begin, node.blocks.data() + begin + equal);
    found += equal;
    if (begin + equal < node.blocks.size() || found == wanted) break;
    const auto child = FindChildNode(number, tokens.subspan(found * block_tokens_, block_tokens_));
    if (!child) break;
    number = *child;
    begin = 0;
    compared = 1;  // by the lookup
  }
  return static_cast<uint32_t>(found);
}

std::optional<BlockId> RadixTree::FindChild(RootId root, BlockId parent,
                                            std::span<const TokenId> block_tokens) const {
  CheckRoot(root);
  QUIRE_CHECK(block_tokens.size() == block_tokens_);
  uint32_t number = root.number();
  if (!parent.is_none()) {
    const Location& location = LocationOf(parent);
    const Node& node = nodes_[location.node];
    QUIRE_CHECK(node.root == root.number());
    const uint64_t next = OffsetOf(location) + uint64_t{1};
    if (next < node.blocks.size()) {
      const TokenId* next_tokens = node.tokens.data() + next * block_tokens_;
      if (!Equal(next_tokens, block_tokens.data(), block_tokens_)) return std::nullopt;
      return node.blocks[next];
    }
    number = location.node;
  }
  const auto child = FindChildNode(number, block_tokens);
  if (!child) return std::nullopt;
  return nodes_[*child].blocks.front();
}

std::optional<uint32_t> RadixTree::CommonTokens(RootId root, BlockId after,
                                                std::span<const TokenId> tokens,
                                                uint32_t children_max) const {
  CheckRoot(root);
  const auto common = [&](const TokenId* block) {
    const auto differ = std::ranges::mismatch(tokens, std::span(block, block_tokens_));
    return static_cast<uint32_t>(differ.in1 - tokens.begin());
  };
  uint32_t number = root.number();
  if (!after.is_none()) {
    const Location& location = LocationOf(after);
    number = location.node;
    const uint64_t next = OffsetOf(location) + uint64_t{1};
    if (next < nodes_[number].blocks.size()) {
      return common(nodes_[number].tokens.data() + next * block_tokens_);
    }
  }
  std::optional<uint32_t> most;
  uint32_t child = nodes_[number].first_child;
  for (uint32_t i = 0; i < children_max && child != kNoNode; ++i) {
    most = std::max(most.value_or(0), common(nodes_[child].tokens.data()));
    child = nodes_[child].next_sibling;
  }
  return most;
}

void RadixTree::Insert(RootId root, BlockId parent, std::span<const TokenId> tokens,
                       std::span<const BlockId> blocks) {
  QUIRE_CHECK(tokens.size() == blocks.size() * block_tokens_);
  if (blocks.empty()) return;
  QUIRE_CHECK_MSG(!FindChild(root, parent, tokens.first(block_tokens_)),
                  "the block is already present");
  ReserveIds(blocks);
  uint32_t number = root.number();
  uint32_t blocks_before = 0;  // of that node's
  if (!parent.is_none()) {
    const Location& location = LocationOf(parent);
    number = location.node;
    blocks_before = OffsetOf(location) + 1;
    const Node& node = nodes_[number];
    if (blocks_before == node.blocks.size() && node.children == 0) {
      AppendToRun(number, tokens, blocks);
      return;
    }
  }
  InsertLeaf(number, blocks_before, tokens, blocks);
}

void RadixTree::Remove(BlockId block) {
  const uint32_t number = LocationOf(block).node;
  Node& node = nodes_[number];
  QUIRE_CHECK_MSG(node.children == 0 && node.blocks.back() == block,
                  "a block with children cannot go");
  locations_[block.number()] = {};
  --block_count_;
  if (node.blocks.size() == 1) {
    tables_->children.Erase(Hash(node.parent, FirstBlock(node)), number);
    nodes_.DetachChild(number);
    nodes_.Free(number);
    return;
  }
  // Eviction comes there next.
  __builtin_prefetch(&locations_[node.blocks[node.blocks.size() - 2].number()]);
  nodes_.PopBlock(number, block_tokens_);
}

bool RadixTree::contains(BlockId block) const {
  return block.number() < locations_.size() && locations_[block.number()].node != kNoNode;
}

bool RadixTree::has_children(BlockId block) const {
  const Node& node = nodes_[LocationOf(block).node];
  return node.children > 0 || node.blocks.back() != block;
}

BlockId RadixTree::parent(BlockId block) const {
  const Location& location = LocationOf(block);
  const Node& node = nodes_[location.node];
  if (location.depth == 0) return BlockId::None();
  if (const uint32_t offset = OffsetOf(location); offset > 0) return node.blocks[offset - 1];
  return nodes_[node.parent].blocks.back();
}

uint32_t RadixTree::depth(BlockId block) const { return LocationOf(block).depth; }

RootId RadixTree::root(BlockId block) const { return RootId(nodes_[LocationOf(block).node].root); }

std::span<const TokenId> RadixTree::tokens(BlockId block) const {
  const Location& location = LocationOf(block);
  const uint64_t begin = uint64_t{OffsetOf(location)} * block_tokens_;
  return std::span(nodes_[location.node].tokens).subspan(begin, block_tokens_);
}

BlockId RadixTree::first_child(BlockId block) const {
  const Location& location = LocationOf(block);
  const Node& node = nodes_[location.node];
  const uint64_t next = OffsetOf(location) + uint64_t{1};
  return next < node.blocks.size() ? node.blocks[next] : FirstBlockOf(node.first_child);
}

BlockId RadixTree::next_sibling(BlockId block) const {
  const Location& location = LocationOf(block);
  if (OffsetOf(location) > 0) return BlockId::None();
  return FirstBlockOf(nodes_[location.node].next_sibling);
}

BlockId RadixTree::AncestorAt(BlockId block, uint32_t depth) const {
  const Location& location = LocationOf(block);
  QUIRE_CHECK(depth <= location.depth);
  uint32_t number = location.node;
  while (nodes_[number].depth > depth) number = nodes_[number].parent;
  return nodes_[number].blocks[depth - nodes_[number].depth];
}

uint64_t RadixTree::node_count() const { return tables_->children.size(); }

uint64_t RadixTree::root_count() const { return tables_->roots.size(); }

uint64_t RadixTree::metadata_bytes() const {
  // An entry of the map has a link and a hash besides.
  constexpr uint64_t kRootBytes =
      AllocationBytes(sizeof(std::pair<Digest, uint32_t>) + 2 * sizeof(void*));
  return nodes_.bytes() + HeapBytesOf(locations_) + tables_->children.bytes() +
         tables_->roots.size() * kRootBytes + tables_->roots.bucket_count() * sizeof(void*) +
         sizeof(Tables);
}

void RadixTree::CheckRoot(RootId root) const {
  QUIRE_CHECK(root.number() < nodes_.size() && nodes_[root.number()].root == root.number());
}

const RadixTree::Location& RadixTree::LocationOf(BlockId block) const {
  QUIRE_CHECK_MSG(contains(block), "no such block in the index");
  return locations_[block.number()];
}

uint32_t RadixTree::OffsetOf(const Location& location) const {
  return location.depth - nodes_[location.node].depth;
}

std::optional<uint32_t> RadixTree::FindChildNode(uint32_t parent,
                                                 std::span<const TokenId> tokens) const {
  if (nodes_[parent].children == 0) return std::nullopt;
  return tables_->children.Find(Hash(parent, tokens), [&](uint32_t number) {
    const Node& node = nodes_[number];
    return node.parent == parent && Equal(node.tokens.data(), tokens.data(), tokens.size());
  });
}

// Half the bits are enough: what a table finds is compared.
uint32_t RadixTree::Hash(uint32_t parent, std::span<const TokenId> tokens) const {
  return static_cast<uint32_t>(hash_(parent, tokens) >> 32);
}

std::span<const TokenId> RadixTree::FirstBlock(const Node& node) const {
  return std::span(node.tokens).first(block_tokens_);
}

// Places for blocks that are not here.
void RadixTree::ReserveIds(std::span<const BlockId> blocks) {
  uint64_t end = locations_.size();
  for (const BlockId block : blocks) {
    QUIRE_CHECK_MSG(!block.is_none() && !contains(block), "the block id is in use");
    end = std::max(end, block.number() + uint64_t{1});
  }
  locations_.Grow(end);
}

void RadixTree::AppendToRun(uint32_t number, std::span<const TokenId> tokens,
                            std::span<const BlockId> blocks) {
  Node& node = nodes_[number];
  const uint64_t size = node.blocks.size() + blocks.size();
  if (size > node.blocks.capacity() || size * block_tokens_ > node.tokens.capacity()) {
    Run larger;
    const uint64_t capacity = std::max(size, 2 * node.blocks.size());
    larger.tokens.reserve(capacity * block_tokens_);
    larger.blocks.reserve(capacity);
    larger.tokens.assign(node.tokens.begin(), node.tokens.end());
    larger.blocks.assign(node.blocks.begin(), node.blocks.end());
    nodes_.SetRun(number, std::move(larger));
  }
  const uint64_t first = node.blocks.size();
  node.tokens.insert(node.tokens.end(), tokens.begin(), tokens.end());
  node.blocks.insert(node.blocks.end(), blocks.begin(), blocks.end());
  Locate(number, first);
}

// A node of its own for blocks that follow the first `blocks_before` of another, which is split
// there if it has more.
void RadixTree::InsertLeaf(uint32_t number, uint32_t blocks_before, std::span<const TokenId> tokens,
                           std::span<const BlockId> blocks) {
  const auto run_of = [](std::span<const TokenId> some_tokens, std::span<const BlockId> some) {
    return Run{.tokens = {some_tokens.begin(), some_tokens.end()},
               .blocks = {some.begin(), some.end()}};
  };
  const Node& node = nodes_[number];
  const bool splits = blocks_before < node.blocks.size();
  // Memory first: shared nodes change when nothing can fail any more.
  const Nodes::Next next = nodes_.Reserve();
  const uint32_t above = splits ? next.first : number;
  Run added = run_of(tokens, blocks);
  Run upper;
  Run lower;
  std::array<uint32_t, 2> hashes = {Hash(above, tokens.first(block_tokens_))};
  if (splits) {
    const std::span all_tokens = node.tokens;
    const std::span all_blocks = node.blocks;
    const uint64_t cut = uint64_t{blocks_before} * block_tokens_;
    upper = run_of(all_tokens.first(cut), all_blocks.first(blocks_before));
    lower = run_of(all_tokens.subspan(cut), all_blocks.subspan(blocks_before));
    hashes[1] = Hash(above, all_tokens.subspan(cut, block_tokens_));
  }
  tables_->children.Reserve(std::span(hashes).first(splits ? 2 : 1));

  if (splits) SplitAfter(number, std::move(upper), std::move(lower));
  const uint32_t leaf = nodes_.Add(above, nodes_[number].root);
  nodes_.AttachChild(above, leaf);
  nodes_.SetRun(leaf, std::move(added));
  Locate(leaf, 0);
  tables_->children.Insert(hashes[0], leaf);
}

// Moves the first blocks of a node into a new node above it. The lower part keeps the number, so
// what hangs below it needs no new keys. There is memory for the node and its key.
void RadixTree::SplitAfter(uint32_t number, Run upper, Run lower) {
  const uint32_t parent = nodes_[number].parent;
  const uint32_t above = nodes_.Add(parent, nodes_[number].root);
  tables_->children.Replace(Hash(parent, FirstBlock(nodes_[number])), number, above);
  nodes_.DetachChild(number);
  nodes_.AttachChild(parent, above);
  for (const BlockId block : upper.blocks) locations_[block.number()].node = above;
  nodes_[number].depth += static_cast<uint32_t>(upper.blocks.size());
  nodes_.SetRun(above, std::move(upper));
  nodes_.SetRun(number, std::move(lower));
  nodes_.AttachChild(above, number);
  tables_->children.Insert(Hash(above, FirstBlock(nodes_[number])), number);
}

// Notes where new blocks lie, those of a node from `first` on.
void RadixTree::Locate(uint32_t number, uint64_t first) {
  const Node& node = nodes_[number];
  for (uint64_t offset = first; offset < node.blocks.size(); ++offset) {
    Location& location = locations_[node.blocks[offset].number()];
    QUIRE_CHECK_MSG(location.node == kNoNode, "the block id is in use");
    location = {.node = number, .depth = node.depth + static_cast<uint32_t>(offset)};
  }
  block_count_ += node.blocks.size() - first;
}

void RadixTree::CheckInvariants() const {
  nodes_.CheckInvariants();
  std::vector<uint32_t> children_seen(nodes_.size(), 0);
  uint64_t roots = 0;
  uint64_t free_nodes = 0;
  uint64_t blocks = 0;
  for (uint32_t number = 0; number < nodes_.size(); ++number) {
    const Node& node = nodes_[number];
    blocks += node.blocks.size();
    if (node.root == kNoNode) {
      ++free_nodes;
    } else if (node.root == number) {
      ++roots;
      QUIRE_CHECK(node.blocks.empty() && node.parent == kNoNode && node.depth == 0);
    } else {
      CheckNode(number, children_seen);
    }
  }
  for (uint32_t number = 0; number < nodes_.size(); ++number) {
    QUIRE_CHECK(children_seen[number] == nodes_[number].children);
  }
  uint64_t located = 0;
  for (uint64_t block = 0; block < locations_.size(); ++block) {
    if (locations_[block].node != kNoNode) ++located;
  }
  QUIRE_CHECK(roots == tables_->roots.size());
  QUIRE_CHECK(nodes_.size() == roots + free_nodes + node_count());
  QUIRE_CHECK(blocks == block_count_);
  QUIRE_CHECK(blocks == located);
}

// One node that holds blocks: its links up, its entry in the table, its blocks.
void RadixTree::CheckNode(uint32_t number, std::vector<uint32_t>& children_seen) const {
  const Node& node = nodes_[number];
  QUIRE_CHECK(!node.blocks.empty());
  QUIRE_CHECK(node.tokens.size() == node.blocks.size() * block_tokens_);
  QUIRE_CHECK(node.parent < nodes_.size());
  const Node& parent = nodes_[node.parent];
  ++children_seen[node.parent];
  QUIRE_CHECK((node.previous_sibling == kNoNode
                   ? parent.first_child
                   : nodes_[node.previous_sibling].next_sibling) == number);
  QUIRE_CHECK(node.next_sibling == kNoNode || nodes_[node.next_sibling].previous_sibling == number);
  QUIRE_CHECK(parent.root == node.root);
  QUIRE_CHECK(node.depth == parent.depth + parent.blocks.size());
  // Two children that start alike would find each other.
  QUIRE_CHECK(FindChildNode(node.parent, FirstBlock(node)) == number);
  for (uint32_t offset = 0; offset < node.blocks.size(); ++offset) {
    const Location& location = LocationOf(node.blocks[offset]);
    QUIRE_CHECK(location.node == number && location.depth == node.depth + offset);
  }
}

}  // namespace quire::index

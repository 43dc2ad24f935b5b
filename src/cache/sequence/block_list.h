// What a sequence remembers of its blocks: their slots, ids and tokens.
#ifndef QUIRE_CACHE_SEQUENCE_BLOCK_LIST_H_
#define QUIRE_CACHE_SEQUENCE_BLOCK_LIST_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/sequence/reach.h"
#include "cache/verbs/holds.h"
#include "quire/identity.h"

namespace quire::cache {

/// Blocks in token order, in chunks. A fork shares the chunks before its own end with the list it
/// was forked from; shared chunks are never written again, so both lists may grow, on any thread.
/// Before it writes an entry of a shared chunk, the owner of a list calls Own, which copies the
/// chunk.
///
/// Two counts of their own say how many of the first blocks have ids (they are published) and how
/// many tokens are known.
///
/// Threads: as a vector. Lists that share chunks may be used on different threads
/// Cost:    O(1) per entry; Fork and Own O(chunks + entries of one chunk)
class BlockList {
 public:
  /// Entries for `classes` slot classes; without `keeps_tokens` no tokens are remembered.
  BlockList(uint32_t classes, uint32_t block_tokens, bool keeps_tokens);
  BlockList(BlockList&&) noexcept = default;
  BlockList& operator=(BlockList&&) noexcept = default;

  uint64_t size() const { return size_; }
  /// New blocks have no slots. Where it grows, and memory runs out, nothing changes. Needs
  /// Own(size()) to grow; shrinking drops ids and tokens beyond the end.
  void Resize(uint64_t blocks);

  /// None: it has no slot in this class.
  SlotId slot(uint32_t slot_class, uint64_t block) const {
    const Chunk& chunk = ChunkOf(block);
    return chunk.slots[slot_class * chunk.capacity + block % chunk_blocks_];
  }
  /// Needs Own(block).
  void SetSlot(uint32_t slot_class, uint64_t block, SlotId slot);

  /// Blocks with ids.
  uint64_t published() const { return published_; }
  BlockId published_block(uint64_t block) const {
    return ChunkOf(block).published[block % chunk_blocks_];
  }
  BlockId last_published() const { return published_block(published_ - 1); }
  /// Ids of blocks [begin, end).
  std::vector<BlockId> PublishedBlocks(uint64_t begin, uint64_t end) const;
  /// Of the next block. Needs Own(published()).
  void AddPublished(BlockId block);
  void SetPublished(uint64_t blocks) { published_ = blocks; }

  /// Tokens known, from the first on.
  uint64_t tokens() const { return tokens_; }
  /// Of a block whose tokens are all known: [block_tokens].
  std::span<const TokenId> BlockTokens(uint64_t block) const;
  /// Needs size() blocks for them, and Own of the first that gets some.
  void AddTokens(std::span<const TokenId> tokens);
  void SetTokens(uint64_t tokens) { tokens_ = tokens; }

  /// A list of the first `blocks` blocks; chunks that lie before block `shared_end` are shared from
  /// now on. Needs shared_end <= blocks <= size().
  BlockList Fork(uint64_t blocks, uint64_t shared_end);
  /// Copies the shared chunks from that of `block` on.
  void Own(uint64_t block);

  /// Bytes of one block's entry.
  uint64_t block_bytes() const;
  /// Bytes that Own(block) will copy, and that Resize(blocks) will add.
  uint64_t BytesToOwn(uint64_t block) const;
  /// Bytes that Fork(blocks, shared_end) will take.
  uint64_t BytesToFork(uint64_t blocks, uint64_t shared_end) const;
  /// Saturates.
  uint64_t BytesToGrow(uint64_t blocks) const;
  /// Pays for the entries of blocks [begin, end), out of `charge`: each chunk keeps its part until
  /// the last list that has it ends.
  void Pay(uint64_t begin, uint64_t end, MetadataCharge& charge);
  uint64_t chunk_blocks() const { return chunk_blocks_; }
  /// Blocks from here on are in chunks that no other list shares.
  uint64_t owned_begin() const { return owned_from_ * chunk_blocks_; }

 private:
  struct Chunk {
    uint64_t capacity = 0;             // blocks
    std::vector<SlotId> slots{};       // [classes, capacity]
    std::vector<BlockId> published{};  // [capacity]
    WipedVector<TokenId> tokens{};     // [capacity, block_tokens], or empty
    MetadataCharge charge{};
  };

  const Chunk& ChunkOf(uint64_t block) const { return *chunks_[block / chunk_blocks_]; }
  Chunk& OwnChunkOf(uint64_t block);
  uint64_t CapacityFor(uint64_t chunk, uint64_t blocks) const;
  std::shared_ptr<Chunk> Copy(const Chunk& from, uint64_t capacity, uint64_t blocks) const;

  uint32_t classes_;
  uint32_t block_tokens_;
  bool keeps_tokens_;
  uint64_t chunk_blocks_;  // of every chunk but the last, which may have fewer
  uint64_t size_ = 0;
  uint64_t published_ = 0;
  uint64_t tokens_ = 0;
  uint64_t owned_from_ = 0;  // chunks before this one may be shared
  std::vector<std::shared_ptr<Chunk>> chunks_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_BLOCK_LIST_H_

#include "cache/sequence/block_list.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/bits.h"
#include "base/check.h"

namespace quire::cache {
namespace {

// A chunk is copied whole: small enough for a fork's end, large enough that a long context has few.
constexpr uint64_t kChunkTokens = 1024;
constexpr uint64_t kChunkBlocksMin = 4;
// Bytes of a chunk besides its entries: the object, and the heap's overhead for its four arrays.
constexpr uint64_t kChunkBytes = 192;

}  // namespace

BlockList::BlockList(uint32_t classes, uint32_t block_tokens, bool keeps_tokens)
    : classes_(classes),
      block_tokens_(block_tokens),
      keeps_tokens_(keeps_tokens),
      chunk_blocks_(std::max(kChunkBlocksMin, kChunkTokens / block_tokens)) {}

BlockList::Chunk& BlockList::OwnChunkOf(uint64_t block) {
  const uint64_t chunk = block / chunk_blocks_;
  QUIRE_DCHECK(block < size_ && chunk >= owned_from_);
  return *chunks_[chunk];
}

// The capacity of a chunk in a list of so many blocks. The first chunk of a short sequence grows by
// doubling.
uint64_t BlockList::CapacityFor(uint64_t chunk, uint64_t blocks) const {
  const uint64_t used = std::min(chunk_blocks_, blocks - chunk * chunk_blocks_);
  return std::min(chunk_blocks_, std::bit_ceil(std::max(kChunkBlocksMin, used)));
}

// The first `blocks` entries.
std::shared_ptr<BlockList::Chunk> BlockList::Copy(const Chunk& from, uint64_t capacity,
                                                  uint64_t blocks) const {
  auto copy = std::make_shared<Chunk>();
  copy->capacity = capacity;
  copy->slots.resize(classes_ * capacity);
  copy->published.resize(capacity);
  if (keeps_tokens_) copy->tokens.resize(capacity * block_tokens_);
  for (uint32_t c = 0; c < classes_; ++c) {
    std::copy_n(from.slots.begin() + static_cast<ptrdiff_t>(c * from.capacity), blocks,
                copy->slots.begin() + static_cast<ptrdiff_t>(c * capacity));
  }
  std::copy_n(from.published.begin(), blocks, copy->published.begin());
  if (keeps_tokens_) {
    std::copy_n(from.tokens.begin(), blocks * block_tokens_, copy->tokens.begin());
  }
  return copy;
}

void BlockList::Resize(uint64_t blocks) {
  const uint64_t count = DivUp(blocks, chunk_blocks_);
  if (blocks > size_) {
    // Everything that can fail comes first.
    chunks_.reserve(count);
    const uint64_t first = size_ / chunk_blocks_;  // the first chunk that gets entries
    std::vector<std::shared_ptr<Chunk>> made;
    made.reserve(count - first);
    for (uint64_t chunk = first; chunk < count; ++chunk) {
      const uint64_t capacity = CapacityFor(chunk, blocks);
      if (chunk >= chunks_.size()) {
        made.push_back(Copy({}, capacity, 0));
      } else if (chunks_[chunk]->capacity < capacity) {
        made.push_back(Copy(*chunks_[chunk], capacity, size_ - chunk * chunk_blocks_));
      } else {
        made.push_back(chunks_[chunk]);
      }
    }
    QUIRE_DCHECK(size_ % chunk_blocks_ == 0 || first >= owned_from_);
    for (uint64_t i = 0; i < made.size(); ++i) {
      if (first + i == chunks_.size()) {
        chunks_.push_back(std::move(made[i]));
      } else if (chunks_[first + i] != made[i]) {
        made[i]->charge = std::move(chunks_[first + i]->charge);
        chunks_[first + i] = std::move(made[i]);
      }
    }
    // Clears entries that an earlier, longer list left there.
    const uint64_t end = std::min(blocks, (first + 1) * chunk_blocks_);
    const uint64_t begin = std::exchange(size_, blocks);
    for (uint64_t block = begin; block < end; ++block) {
      for (uint32_t c = 0; c < classes_; ++c) SetSlot(c, block, SlotId::None());
    }
    return;
  }
  size_ = blocks;
  chunks_.resize(count);
  owned_from_ = std::min(owned_from_, count);
  published_ = std::min(published_, blocks);
  tokens_ = std::min(tokens_, blocks * block_tokens_);
}

void BlockList::SetSlot(uint32_t slot_class, uint64_t block, SlotId slot) {
  Chunk& chunk = OwnChunkOf(block);
  chunk.slots[slot_class * chunk.capacity + block % chunk_blocks_] = slot;
}

std::vector<BlockId> BlockList::PublishedBlocks(uint64_t begin, uint64_t end) const {
  std::vector<BlockId> blocks;
  blocks.reserve(end - begin);
  for (uint64_t block = begin; block < end; ++block) blocks.push_back(published_block(block));
  return blocks;
}

void BlockList::AddPublished(BlockId block) {
  OwnChunkOf(published_).published[published_ % chunk_blocks_] = block;
  ++published_;
}

std::span<const TokenId> BlockList::BlockTokens(uint64_t block) const {
  QUIRE_DCHECK(tokens_ >= (block + 1) * block_tokens_);
  return std::span(ChunkOf(block).tokens)
      .subspan(block % chunk_blocks_ * block_tokens_, block_tokens_);
}

void BlockList::AddTokens(std::span<const TokenId> tokens) {
  while (!tokens.empty()) {
    const uint64_t block = tokens_ / block_tokens_;
    const uint64_t in_block = tokens_ % block_tokens_;
    const size_t count = std::min<size_t>(tokens.size(), block_tokens_ - in_block);
    const uint64_t begin = block % chunk_blocks_ * block_tokens_ + in_block;
    std::ranges::copy(tokens.first(count),
                      OwnChunkOf(block).tokens.begin() + static_cast<ptrdiff_t>(begin));
    tokens_ += count;
    tokens = tokens.subspan(count);
  }
}

BlockList BlockList::Fork(uint64_t blocks, uint64_t shared_end) {
  QUIRE_DCHECK(shared_end <= blocks && blocks <= size_);
  BlockList fork(classes_, block_tokens_, keeps_tokens_);
  const uint64_t shared = shared_end / chunk_blocks_;
  fork.chunks_.assign(chunks_.begin(), chunks_.begin() + static_cast<ptrdiff_t>(shared));
  for (uint64_t chunk = shared; chunk < DivUp(blocks, chunk_blocks_); ++chunk) {
    fork.chunks_.push_back(Copy(*chunks_[chunk], CapacityFor(chunk, blocks),
                                std::min(chunk_blocks_, blocks - chunk * chunk_blocks_)));
  }
  fork.size_ = blocks;
  fork.published_ = std::min(published_, blocks);
  fork.tokens_ = std::min(tokens_, blocks * block_tokens_);
  fork.owned_from_ = shared;
  owned_from_ = std::max(owned_from_, shared);
  return fork;
}

void BlockList::Own(uint64_t block) {
  const uint64_t first = block / chunk_blocks_;
  for (uint64_t chunk = owned_from_; chunk > first; --chunk) {
    const Chunk& shared = *chunks_[chunk - 1];
    const uint64_t begin = (chunk - 1) * chunk_blocks_;
    chunks_[chunk - 1] = Copy(shared, shared.capacity, std::min(size_ - begin, chunk_blocks_));
    owned_from_ = chunk - 1;
  }
}

uint64_t BlockList::block_bytes() const {
  return classes_ * sizeof(SlotId) + sizeof(BlockId) +
         (keeps_tokens_ ? block_tokens_ * sizeof(TokenId) : 0);
}

uint64_t BlockList::BytesToOwn(uint64_t block) const {
  const uint64_t first = block / chunk_blocks_;
  const uint64_t shared = owned_from_ - std::min(owned_from_, first);
  return shared * chunk_blocks_ * block_bytes();
}

uint64_t BlockList::BytesToFork(uint64_t blocks, uint64_t shared_end) const {
  const uint64_t chunks = DivUp(blocks, chunk_blocks_);
  uint64_t bytes = chunks * sizeof(chunks_[0]);
  for (uint64_t chunk = shared_end / chunk_blocks_; chunk < chunks; ++chunk) {
    bytes += kChunkBytes + CapacityFor(chunk, blocks) * block_bytes();
  }
  return bytes;
}

uint64_t BlockList::BytesToGrow(uint64_t blocks) const {
  const auto capacity = [this](uint64_t of) {
    if (of == 0) return uint64_t{0};
    const uint64_t last = (of - 1) / chunk_blocks_;
    return last * chunk_blocks_ + CapacityFor(last, of);
  };
  const uint64_t now = capacity(size_);
  const uint64_t added = std::max(now, capacity(blocks)) - now;
  return CheckedProduct(added, block_bytes()).value_or(UINT64_MAX);
}

void BlockList::Pay(uint64_t begin, uint64_t end, MetadataCharge& charge) {
  for (uint64_t block = begin; block < end && charge.bytes() > 0;) {
    const uint64_t next = std::min(end, (block / chunk_blocks_ + 1) * chunk_blocks_);
    const uint64_t bytes = next == end ? charge.bytes() : (next - block) * block_bytes();
    OwnChunkOf(block).charge.Add(charge.Split(bytes));
    block = next;
  }
}

}  // namespace quire::cache

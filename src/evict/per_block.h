// Tables by block id: anything for each block, what a policy remembers of blocks that are in the
// cache, and lists that need no memory of their own.
#ifndef QUIRE_EVICT_PER_BLOCK_H_
#define QUIRE_EVICT_PER_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "quire/identity.h"

namespace quire::evict {

/// A T for each block id up to the highest one used. Ids are dense, so no more than the last piece
/// is ever paid for in vain.
template <typename T, size_t kPiece = 64>
class PerBlock {
 public:
  T& At(BlockId block) {
    const size_t piece = block.number() / kPiece;
    if (piece >= pieces_.size()) pieces_.resize(piece + 1);
    if (pieces_[piece] == nullptr) pieces_[piece] = std::make_unique<T[]>(kPiece);
    return pieces_[piece][block.number() % kPiece];
  }

  bool contains(BlockId block) const {
    const size_t piece = block.number() / kPiece;
    return piece < pieces_.size() && pieces_[piece] != nullptr;
  }
  /// Of an id that the table contains.
  T& operator[](BlockId block) { return pieces_[block.number() / kPiece][block.number() % kPiece]; }
  const T& operator[](BlockId block) const {
    return pieces_[block.number() / kPiece][block.number() % kPiece];
  }

  /// The block will be asked for soon. Any id will do.
  void Prefetch(BlockId block) const {
    if (contains(block)) __builtin_prefetch(&(*this)[block]);
  }

 private:
  std::vector<std::unique_ptr<T[]>> pieces_;
};

/// A T for every block id, fresh when the id stands for another block than before.
///
/// Cost: kBytesEach per block id, once for all that share the table
template <typename T>
class KeyedBlocks {
 private:
  struct Entry {
    uint64_t key = 0;
    T value = {};
    bool present = false;
  };

 public:
  static constexpr uint64_t kBytesEach = sizeof(Entry);

  struct Place {
    T& value;
    bool is_new;
  };

  KeyedBlocks() : entries_(std::make_shared<PerBlock<Entry>>()) {}
  /// With the table of another one: a block is known to one of them at a time.
  explicit KeyedBlocks(const std::shared_ptr<PerBlock<Entry>>& table) : entries_(table) {}
  const std::shared_ptr<PerBlock<Entry>>& table() const { return entries_; }

  /// Shape: key is BlockFacts::key
  Place At(BlockId block, uint64_t key) {
    QUIRE_CHECK(!block.is_none());
    Entry& entry = entries_->At(block);
    const bool is_new = !entry.present || entry.key != key;
    if (!entry.present) ++count_;
    if (is_new) entry = {.key = key, .value = {}, .present = true};
    return {entry.value, is_new};
  }

  /// The block will be asked for soon. Any id will do.
  void Prefetch(BlockId block) const { entries_->Prefetch(block); }

  /// Of a block that is known.
  const T& operator[](BlockId block) const { return (*entries_)[block].value; }
  T& operator[](BlockId block) { return (*entries_)[block].value; }
  uint64_t key(BlockId block) const { return (*entries_)[block].key; }

  void Forget(BlockId block) {
    (*entries_)[block] = {};
    --count_;
  }

  /// Known blocks: those that are in the cache.
  uint64_t size() const { return count_; }

 private:
  const std::shared_ptr<PerBlock<Entry>> entries_;
  uint64_t count_ = 0;
};

/// Some lists through one table indexed by block id (small, dense numbers). A block is in one of
/// them at most.
///
/// Cost: O(1) per call; kBytesEach per block id, once for all that share the table
class Rings {
 public:
  static constexpr uint64_t kBytesEach = 8;

  explicit Rings(uint32_t rings) : ends_(rings), links_(std::make_shared<PerBlock<Link>>()) {}
  /// With the table of other rings: a block is in one ring of all that share it.
  Rings(uint32_t rings, const Rings& sibling) : ends_(rings), links_(sibling.links_) {}

  /// Puts a block that is in no ring at the end of one.
  void Append(uint32_t ring, BlockId block) {
    Ends& ends = ends_[ring];
    links_->At(block) = {.previous = NameOf(ends.last), .next = kEnd};
    if (ends.last.is_none()) {
      ends.first = block;
    } else {
      (*links_)[ends.last].next = NameOf(block);
    }
    ends.last = block;
  }
  /// Takes a block out of its ring.
  void Remove(uint32_t ring, BlockId block) {
    Ends& ends = ends_[ring];
    Link& link = (*links_)[block];
    const BlockId previous = BlockOf(link.previous);
    const BlockId next = BlockOf(link.next);
    link = {};
    if (previous.is_none()) {
      ends.first = next;
    } else {
      (*links_)[previous].next = NameOf(next);
    }
    if (next.is_none()) {
      ends.last = previous;
    } else {
      (*links_)[next].previous = NameOf(previous);
    }
  }

  /// Whether it is in a ring of those that share the table.
  bool contains(BlockId block) const {
    return links_->contains(block) && (*links_)[block].next != kNowhere;
  }
  /// None if the ring is empty.
  BlockId First(uint32_t ring) const { return ends_[ring].first; }
  BlockId Last(uint32_t ring) const { return ends_[ring].last; }
  /// What stands behind a block that is in a ring; none if it is the last.
  BlockId Next(BlockId block) const { return BlockOf((*links_)[block].next); }

 private:
  // Block b is named b + 2.
  static constexpr uint32_t kNowhere = 0;
  static constexpr uint32_t kEnd = 1;
  struct Link {
    uint32_t previous = kNowhere;
    uint32_t next = kNowhere;
  };
  static_assert(sizeof(Link) == kBytesEach);
  struct Ends {
    BlockId first{};
    BlockId last{};
  };

  static uint32_t NameOf(BlockId block) { return block.is_none() ? kEnd : block.number() + 2; }
  static BlockId BlockOf(uint32_t name) {
    return name == kEnd ? BlockId::None() : BlockId(name - 2);
  }

  std::vector<Ends> ends_;  // by ring
  const std::shared_ptr<PerBlock<Link>> links_;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_PER_BLOCK_H_

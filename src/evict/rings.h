// Lists of numbers that need no memory of their own for what they hold.
#ifndef QUIRE_EVICT_RINGS_H_
#define QUIRE_EVICT_RINGS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "evict/per_block.h"
#include "quire/identity.h"

namespace quire::evict {

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

#endif  // QUIRE_EVICT_RINGS_H_

// Lists of numbers that need no memory of their own for what they hold.
#ifndef QUIRE_EVICT_RINGS_H_
#define QUIRE_EVICT_RINGS_H_

#include <cstdint>
#include <vector>

#include "quire/ids.h"

namespace quire::evict {

/// Some lists through one table indexed by block id (small, dense numbers). A block is in one of
/// them at most.
///
/// Cost: O(1) per call; 8 bytes per block id
class Rings {
 public:
  explicit Rings(uint32_t rings) : rings_(rings) {
    for (uint32_t i = 0; i < rings; ++i) links_.push_back({.previous = i, .next = i});
  }

  /// Puts a block that is in no ring at the end of one.
  void Append(uint32_t ring, BlockId block) {
    const uint32_t at = LinkOf(block);
    while (links_.size() <= at) {
      const auto self = static_cast<uint32_t>(links_.size());
      links_.push_back({.previous = self, .next = self});
    }
    const uint32_t last = links_[ring].previous;
    links_[at] = {.previous = last, .next = ring};
    links_[last].next = at;
    links_[ring].previous = at;
  }
  /// Takes a block out of its ring.
  void Remove(BlockId block) {
    const uint32_t at = LinkOf(block);
    const Link link = links_[at];
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    links_[at] = {.previous = at, .next = at};
  }

  bool contains(BlockId block) const {
    const uint64_t at = uint64_t{rings_} + block.number();
    return at < links_.size() && links_[at].next != at;
  }
  /// None if the ring is empty.
  BlockId First(uint32_t ring) const { return BlockOf(links_[ring].next); }
  BlockId Last(uint32_t ring) const { return BlockOf(links_[ring].previous); }
  /// What stands behind a block that is in a ring; none if it is the last.
  BlockId Next(BlockId block) const { return BlockOf(links_[LinkOf(block)].next); }

 private:
  // Ring r starts and ends at link r: its next is the first block, its previous the last. Block b
  // is link rings_ + b; a link that points at itself is in no ring, or an empty ring.
  struct Link {
    uint32_t previous;
    uint32_t next;
  };

  uint32_t LinkOf(BlockId block) const { return rings_ + block.number(); }
  BlockId BlockOf(uint32_t link) const {
    return link < rings_ ? BlockId::None() : BlockId(link - rings_);
  }

  const uint32_t rings_;
  std::vector<Link> links_;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_RINGS_H_

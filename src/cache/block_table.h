// What the cache knows of each published block: where it lies, who leases it, its key and checksum.
#ifndef QUIRE_CACHE_BLOCK_TABLE_H_
#define QUIRE_CACHE_BLOCK_TABLE_H_

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "quire/identity.h"
#include "quire/ids.h"

namespace quire::cache {

/// A published block.
struct BlockRecord {
  SlotId slot;
  uint32_t leases = 0;       // holders besides the index, and leased children; 0: may be evicted
  uint32_t crc = 0;          // CRC32C of the slot's bytes when it was published
  bool quarantined = false;  // it or a block before it failed a re-check: never handed out again
  Digest key{};              // identity in stores, chained from the root key
};

/// Ids are dense and reused, so that policies and the index can be vectors.
///
/// Threads: the cache lock is held
class BlockTable {
 public:
  BlockId Add(const BlockRecord& record) {
    BlockId id(static_cast<uint32_t>(records_.size()));
    if (free_.empty()) {
      records_.push_back(record);
    } else {
      id = free_.back();
      free_.pop_back();
      records_[id.number()] = record;
    }
    const uint32_t slot = record.slot.number();
    if (slot >= block_of_slot_.size()) block_of_slot_.resize(slot + 1);
    QUIRE_CHECK(block_of_slot_[slot].is_none());
    block_of_slot_[slot] = id;
    return id;
  }

  void Remove(BlockId id) {
    BlockRecord& record = at(id);
    QUIRE_CHECK(record.leases == 0);
    block_of_slot_[record.slot.number()] = BlockId::None();
    record.slot = SlotId::None();
    free_.push_back(id);
  }

  bool contains(BlockId id) const {
    return id.number() < records_.size() && !records_[id.number()].slot.is_none();
  }

  BlockRecord& at(BlockId id) {
    QUIRE_DCHECK(contains(id));
    return records_[id.number()];
  }

  /// The published block in a slot, or none.
  BlockId InSlot(SlotId slot) const {
    return slot.number() < block_of_slot_.size() ? block_of_slot_[slot.number()] : BlockId::None();
  }

  /// Every published block by ascending id.
  std::vector<BlockId> Ids() const {
    std::vector<BlockId> ids;
    ids.reserve(size());
    for (uint32_t i = 0; i < records_.size(); ++i) {
      if (!records_[i].slot.is_none()) ids.emplace_back(i);
    }
    return ids;
  }

  uint64_t size() const { return records_.size() - free_.size(); }

  /// Calls visit(id, record) for every published block by ascending id.
  template <typename Visit>
  void ForEach(Visit visit) {
    for (uint32_t i = 0; i < records_.size(); ++i) {
      if (!records_[i].slot.is_none()) visit(BlockId(i), records_[i]);
    }
  }

 private:
  std::vector<BlockRecord> records_;
  std::vector<BlockId> free_;
  std::vector<BlockId> block_of_slot_;  // grows with the highest slot used
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BLOCK_TABLE_H_

// What the cache knows of a published block: where it lies, who leases it, its key and checksums.
#ifndef QUIRE_CACHE_BLOCK_TABLE_H_
#define QUIRE_CACHE_BLOCK_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "cache/reach.h"
#include "quire/identity.h"
#include "quire/ids.h"

namespace quire::cache {

/// Whether a block may be handed out.
enum class Standing : uint8_t {
  kGood = 1,
  kDamaged = 2,  // it or a block before it failed a re-check
  kPassed = 3,   // it or a block before it was passed by every window, and there are too many such
  kErased = 4,   // whoever published it, or a block before it, was erased
};

/// In which list of what can be evicted a block stands.
enum class Listed : uint8_t {
  kNowhere = 1,
  kWhole = 2,  // nobody leases it: it can go as a whole
  kParts = 3,  // leased, but has parts that windows have passed, or twins, that nobody holds
};

/// A published block.
struct BlockRecord {
  PerClass<SlotId> slots{};   // none: no such part, or a window has passed it and it is gone; of an
                              // open class a twin, or none
  PerClass<uint32_t> crcs{};  // CRC32C of each slot's bytes when it was published
  uint32_t leases = 0;        // holders besides the index, and leased children
  Standing standing = Standing::kGood;
  Listed listed = Listed::kNowhere;
  uint8_t priority = 0;            // as callers asked; only with an end
  uint8_t pinned_parts = 0;        // a bit for each slot that pins hold
  uint64_t listed_bytes = 0;       // what evicting it from its list gives back
  uint64_t stamp = 0;              // order of listing, over all lists
  uint64_t listed_us = 0;          // when; kept only for tenants with a ttl
  uint64_t retained_until_us = 0;  // the priority's end; 0: nobody asked for one
  TenantId account{};              // who pays for it: the tenant, or the domain it was published to
  TenantId publisher{};
  uint32_t pins = 0;  // paths that Pin keeps and that go through it
  Digest key{};       // identity in stores, chained from the root key

  bool IsPinned(uint32_t slot_class) const { return ((pinned_parts >> slot_class) & 1U) != 0; }
  bool hollow() const {
    for (const SlotId slot : slots) {
      if (!slot.is_none()) return false;
    }
    return true;
  }
};

/// Ids are dense and reused, so that policies and the index can be vectors.
///
/// Threads: the cache lock is held
class BlockTable {
 public:
  /// Takes the memory for one more block in these slots, and tells the id that Add will give it.
  BlockId Reserve(std::span<const SlotId> slots) {
    if (free_.empty()) {
      if (entries_.size() == entries_.capacity()) {
        entries_.reserve(std::max<size_t>(kEntriesMin, 2 * entries_.size()));
      }
      free_.reserve(entries_.capacity());  // so that Remove needs no memory
    }
    for (const SlotId slot : slots) ReserveSlot(slot);
    return free_.empty() ? BlockId(static_cast<uint32_t>(entries_.size())) : free_.back();
  }
  /// The same for AddSlot.
  void ReserveSlot(SlotId slot) {
    if (slot.is_none() || slot.number() < block_of_slot_.size()) return;
    block_of_slot_.resize(slot.number() + 1);
  }

  BlockId Add(const BlockRecord& record) {
    const BlockId id = Reserve(record.slots);
    if (free_.empty()) {
      entries_.push_back({.record = record, .used = true});
    } else {
      free_.pop_back();
      entries_[id.number()] = {.record = record, .used = true};
    }
    for (const SlotId slot : record.slots) {
      if (!slot.is_none()) Link(slot, id);
    }
    return id;
  }

  void Remove(BlockId id) {
    QUIRE_CHECK(at(id).leases == 0);
    for (uint32_t c = 0; c < kClassesMax; ++c) {
      if (!at(id).slots[c].is_none()) RemoveSlot(id, c);
    }
    entries_[id.number()].used = false;
    free_.push_back(id);
  }

  /// The block has, or no longer has, the bytes of one part, or its open form.
  void AddSlot(BlockId id, uint32_t slot_class, SlotId slot) {
    QUIRE_CHECK(at(id).slots[slot_class].is_none());
    at(id).slots[slot_class] = slot;
    Link(slot, id);
  }
  void MoveSlot(BlockId id, uint32_t slot_class, SlotId to) {
    RemoveSlot(id, slot_class);
    AddSlot(id, slot_class, to);
  }
  void RemoveSlot(BlockId id, uint32_t slot_class) {
    SlotId& slot = at(id).slots[slot_class];
    block_of_slot_[slot.number()] = BlockId::None();
    slot = SlotId::None();
  }

  bool contains(BlockId id) const {
    return id.number() < entries_.size() && entries_[id.number()].used;
  }

  BlockRecord& at(BlockId id) {
    QUIRE_DCHECK(contains(id));
    return entries_[id.number()].record;
  }

  /// The published block in a slot, or none.
  BlockId InSlot(SlotId slot) const {
    return slot.number() < block_of_slot_.size() ? block_of_slot_[slot.number()] : BlockId::None();
  }

  /// Every published block by ascending id.
  std::vector<BlockId> Ids() const {
    std::vector<BlockId> ids;
    ids.reserve(size());
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].used) ids.emplace_back(i);
    }
    return ids;
  }

  uint64_t size() const { return entries_.size() - free_.size(); }

  /// Calls visit(id, record) for every published block by ascending id.
  template <typename Visit>
  void ForEach(Visit visit) {
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].used) visit(BlockId(i), entries_[i].record);
    }
  }

 private:
  static constexpr size_t kEntriesMin = 8;

  struct Entry {
    BlockRecord record;
    bool used = false;
  };

  void Link(SlotId slot, BlockId id) {
    ReserveSlot(slot);
    QUIRE_CHECK(block_of_slot_[slot.number()].is_none());
    block_of_slot_[slot.number()] = id;
  }

  std::vector<Entry> entries_;
  std::vector<BlockId> free_;
  std::vector<BlockId> block_of_slot_;  // grows with the highest slot used
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BLOCK_TABLE_H_

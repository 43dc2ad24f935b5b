// Twins: open forms of published blocks, kept where prompts may go on although the last tokens
// before are read open (NumericProfile::residual_tokens).
#include <algorithm>
#include <vector>

#include "base/sync_point.h"
#include "cache/core.h"

namespace quire::cache {

void Core::KeepTwins(const Place& place, std::span<const BlockId> blocks,
                     const PerPart<std::vector<SlotId>>& slots) {
  struct Twin {
    BlockId block;
    SlotId slot;
    uint32_t crc = 0;
  };
  const auto missing = [&]() QUIRE_REQUIRES(mutex_) {
    std::vector<Twin> twins;
    // What continues a block that is not good any more is not good either.
    const bool good = place.epoch == TenantOf(place.tenant).epoch &&
                      blocks_.at(blocks.back()).standing == Standing::kGood;
    for (uint32_t part = 0; good && part < layout_.part_count(); ++part) {
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (!blocks_.at(blocks[i]).slots[OpenClassOf(part)].is_none()) continue;
        twins.push_back({.block = blocks[i], .slot = slots[part][i]});
      }
    }
    return twins;
  };
  std::vector<Twin> twins;
  {
    MutexLock lock(mutex_);
    twins = missing();
  }
  if (twins.empty()) return;
  // Hashing needs no lock: the caller holds the slots, and whole blocks are not written any more.
  for (Twin& twin : twins) twin.crc = Checksum(twin.slot);
  AtSyncPoint("keep twins: hashed");

  const auto keep = [&]() QUIRE_REQUIRES(mutex_) {
    uint64_t bytes = 0;
    for (const Twin& twin : twins) bytes += charges_[ClassOf(twin.slot)];
    if (!MakeRoomInAccount(place, bytes)) return;
    // Meanwhile others may have kept some. If some of theirs are gone there is no checksum for
    // these.
    std::vector<Twin> now = missing();
    for (Twin& twin : now) {
      const auto hashed = std::ranges::find(twins, twin.slot, &Twin::slot);
      if (hashed == twins.end()) return;
      twin.crc = hashed->crc;
    }
    for (const Twin& twin : now) blocks_.ReserveSlot(twin.slot);
    for (const Twin& twin : now) {
      ++twin_slots_;
      AddPublishedSlot(twin.block, twin.slot, twin.crc);
    }
  };
  {
    MutexLock lock(mutex_);
    keep();
  }
}

uint64_t Core::TwinBytes(const BlockRecord& record) const {
  uint64_t bytes = 0;
  for (uint32_t c = layout_.part_count(); c < class_count(); ++c) {
    if (!record.slots[c].is_none()) bytes += charges_[c];
  }
  return bytes;
}

void Core::EvictTwins(BlockId block) {
  for (uint32_t c = layout_.part_count(); c < class_count(); ++c) {
    const SlotId slot = blocks_.at(block).slots[c];
    if (slot.is_none()) continue;
    --twin_slots_;
    blocks_.RemoveSlot(block, c);
    FreeIfLast(slot);
  }
  List(block);  // where it stood, with what is left of it
}

}  // namespace quire::cache

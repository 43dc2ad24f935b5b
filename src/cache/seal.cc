// Publishing whole blocks, and checking them again later.
#include "base/hash.h"
#include "cache/core.h"

namespace quire::cache {

BlockId Core::Publish(const Place& place, const NewBlock& block) {
  // Hashing needs no lock: the caller holds the slot and nobody writes it any more.
  const uint32_t crc = Crc32c({data(block.slot), layout_.slot_bytes()});
  Digest parent_key = place.root_key;
  if (!block.parent.is_none()) {
    MutexLock lock(mutex_);
    parent_key = blocks_.at(block.parent).key;
  }
  const Digest key = ChildKey(*place.domain, parent_key, block.tokens.data(), block_tokens());

  MutexLock lock(mutex_);
  const index::RootId root = index_.Root(place.root_key);
  if (const auto present = index_.FindChild(root, block.parent, block.tokens)) {
    const BlockRecord& record = blocks_.at(*present);
    if (record.quarantined) return BlockId::None();
    HoldSlot(record.slot);
    ReleaseSlot(block.slot);
    ++counters_.deduplicated_total;
    return *present;
  }
  const BlockId id = blocks_.Add(
      {.slot = block.slot, .leases = sealed_->references(block.slot), .crc = crc, .key = key});
  sealed_->Retain(block.slot);  // the index's own hold
  index_.Insert(root, block.parent, block.tokens, {&id, 1});
  if (root.number() >= root_keys_.size()) root_keys_.resize(root.number() + 1);
  root_keys_[root.number()] = place.root_key;
  ++counters_.published_total;
  return id;
}

SlotId Core::SlotOf(BlockId block) const {
  MutexLock lock(mutex_);
  return blocks_.at(block).slot;
}

VerifyReport Core::Verify() {
  std::vector<BlockId> all;
  {
    MutexLock lock(mutex_);
    blocks_.ForEach([&all](BlockId id, const BlockRecord&) { all.push_back(id); });
  }
  VerifyReport report;
  for (BlockId id : all) {
    MutexLock lock(mutex_);
    if (!blocks_.contains(id)) continue;  // evicted meanwhile
    BlockRecord& record = blocks_.at(id);
    ++report.blocks;
    if (Crc32c({data(record.slot), layout_.slot_bytes()}) == record.crc) continue;
    ++report.damaged;
    record.quarantined = true;
    if (record.leases == 0 && !index_.has_children(id)) Drop(id);
  }
  return report;
}

}  // namespace quire::cache

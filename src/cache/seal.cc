// Publishing whole blocks, and checking them again later.
#include "base/hash.h"
#include "cache/core.h"

namespace quire::cache {

Published Core::Publish(const Place& place, const NewBlock& block) {
  Digest parent_key = place.root_key;
  {
    MutexLock lock(mutex_);
    if (const auto known = FindPublished(place, block)) return *known;
    if (!block.parent.is_none()) parent_key = blocks_.at(block.parent).key;
  }
  // Hashing needs no lock: the caller holds the slot and nobody writes it any more.
  const uint32_t crc = Crc32c({data(block.slot), layout_.slot_bytes()});
  const Digest key = ChildKey(*place.domain, parent_key, block.tokens.data(), block_tokens());

  MutexLock lock(mutex_);
  if (const auto known = FindPublished(place, block)) return *known;  // meanwhile
  const index::RootId root = index_.Root(place.root_key);
  const BlockId id = blocks_.Add(
      {.slot = block.slot, .leases = sealed_->references(block.slot), .crc = crc, .key = key});
  sealed_->Retain(block.slot);  // the index's own hold
  index_.Insert(root, block.parent, block.tokens, {&id, 1});
  AddLease(block.parent);
  if (root.number() >= root_keys_.size()) root_keys_.resize(root.number() + 1);
  root_keys_[root.number()] = place.root_key;
  ++counters_.published_total;
  return {.block = id, .slot = block.slot};
}

std::optional<Published> Core::FindPublished(const Place& place, const NewBlock& block) {
  if (!block.parent.is_none() && blocks_.at(block.parent).quarantined) return Published{};
  const auto root = index_.FindRoot(place.root_key);
  if (!root) return std::nullopt;
  const auto present = index_.FindChild(*root, block.parent, block.tokens);
  if (!present) return std::nullopt;
  const BlockRecord& record = blocks_.at(*present);
  if (record.quarantined) return Published{};
  HoldSlot(record.slot);
  ++counters_.deduplicated_total;
  return Published{.block = *present, .slot = record.slot, .deduplicated = true};
}

bool Core::Intact(SlotId slot) {
  BlockId block;
  uint32_t crc = 0;
  {
    MutexLock lock(mutex_);
    block = blocks_.InSlot(slot);
    if (block.is_none()) return true;
    if (blocks_.at(block).quarantined) return false;
    crc = blocks_.at(block).crc;
  }
  if (Crc32c({data(slot), layout_.slot_bytes()}) == crc) return true;
  MutexLock lock(mutex_);
  Quarantine(block);
  return false;
}

// Takes a block out of use with everything that continues it: that may have been computed from the
// damaged bytes.
void Core::Quarantine(BlockId block) {
  if (blocks_.at(block).quarantined) return;
  blocks_.at(block).quarantined = true;
  std::vector<BlockId> marked = {block};  // parents before children
  const std::vector<BlockId> all = blocks_.Ids();
  // Damage is rare: passes over all blocks, until one finds nothing more.
  for (size_t before = 0; before < marked.size();) {
    before = marked.size();
    for (const BlockId id : all) {
      const BlockId parent = index_.parent(id);
      BlockRecord& record = blocks_.at(id);
      if (record.quarantined || parent.is_none() || !blocks_.at(parent).quarantined) continue;
      record.quarantined = true;
      marked.push_back(id);
    }
  }
  // What is leased goes with its last lease.
  for (size_t i = marked.size(); i > 0; --i) {
    if (blocks_.at(marked[i - 1]).leases == 0) Drop(marked[i - 1]);
  }
}

VerifyReport Core::Verify() {
  std::vector<BlockId> all;
  {
    MutexLock lock(mutex_);
    all = blocks_.Ids();
  }
  VerifyReport report;
  for (BlockId id : all) {
    MutexLock lock(mutex_);
    if (!blocks_.contains(id)) continue;  // evicted meanwhile
    const BlockRecord& record = blocks_.at(id);
    ++report.blocks;
    if (Crc32c({data(record.slot), layout_.slot_bytes()}) == record.crc) continue;
    ++report.damaged;
    Quarantine(id);
  }
  return report;
}

}  // namespace quire::cache

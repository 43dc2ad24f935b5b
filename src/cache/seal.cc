// Publishing whole blocks, and checking them again later.
#include <algorithm>
#include <new>

#include "base/sync_point.h"
#include "cache/core.h"

namespace quire::cache {

// Where memory runs out the answers end as where something stands in the way.
void Core::Publish(const Place& place, std::span<NewBlock> blocks,
                   std::vector<Published>& answers) {
  answers.clear();
  answers.reserve(blocks.size());
  try {
    PublishSome(place, blocks, answers);
  } catch (const std::bad_alloc&) {
    const bool ended = !answers.empty() && answers.back().block.is_none();
    if (!ended && answers.size() < blocks.size()) answers.emplace_back();
  }
}

void Core::PublishSome(const Place& place, std::span<NewBlock> blocks,
                       std::vector<Published>& answers) {
  // True: go on with blocks[answers.size()].
  const auto add = [&](const Published& answer) {
    answers.push_back(answer);
    if (answer.block.is_none() || answers.size() == blocks.size()) return false;
    blocks[answers.size()].parent = answer.block;
    return true;
  };
  Digest key = place.root_key;
  const bool some_are_new = mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    while (const auto known = JoinWhole(place, blocks[answers.size()])) {
      if (!add(*known)) return false;
    }
    const BlockId parent = blocks[answers.size()].parent;
    if (!parent.is_none()) key = blocks_.at(parent).key;
    return true;
  });
  if (!some_are_new) return;
  // Hashing needs no lock: the caller holds the slots and nobody writes them any more.
  std::vector<BlockRecord> records;
  for (const NewBlock& block : blocks.subspan(answers.size())) {
    key = ChildKey(*place.domain, key, block.tokens.data(), block_tokens());
    BlockRecord& record = records.emplace_back(BlockRecord{.slots = block.slots, .key = key});
    for (uint32_t part = 0; part < layout_.part_count(); ++part) {
      record.crcs[part] = Checksum(block.slots[part]);
    }
  }
  AtSyncPoint("publish: hashed");
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    for (const BlockRecord& record : records) {
      if (!add(PublishOne(place, blocks[answers.size()], record))) return;
    }
  });
}

Standing Core::StandingBefore(const Place& place, const NewBlock& block) const {
  // Nothing of before an erasure comes back.
  if (place.epoch != TenantOf(place.tenant).epoch) return Standing::kErased;
  return block.parent.is_none() ? Standing::kGood : blocks_.at(block.parent).standing;
}

// The answer for a block that needs no hashing. Empty: it is new, or parts of it are missing.
std::optional<Published> Core::JoinWhole(const Place& place, const NewBlock& block) {
  if (const Standing before = StandingBefore(place, block); before != Standing::kGood) {
    return Published{.final = before != Standing::kDamaged};
  }
  const auto same = FindSame(place, block);
  if (!same) return std::nullopt;
  if (blocks_.at(*same).standing == Standing::kGood && !IsWhole(blocks_.at(*same))) {
    return std::nullopt;
  }
  return Join(*same, block, {});
}

Published Core::PublishOne(const Place& place, const NewBlock& block, const BlockRecord& record) {
  if (StandingBefore(place, block) != Standing::kGood) return {};  // meanwhile
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) bytes += charges_[part];
  if (!MakeRoomInAccount(place, bytes)) return {};
  if (const auto same = FindSame(place, block)) return Join(*same, block, record.crcs);
  return AddToIndex(place, block, record);
}

Published Core::AddToIndex(const Place& place, const NewBlock& block, BlockRecord record) {
  Tenant& account = AccountOf(place);
  const index::RootId root = index_.Root(place.root_key);
  const bool is_first = index_.empty(root);
  const BlockId id = ReserveInIndex(root, account, block, place.root_key);
  // Nothing fails from here on.
  if (is_first) {
    roots_[root.number()] = {.key = place.root_key, .domain = place.domain};
    account.roots.push_back(root);
  }
  record.account = account.account_id;
  record.publisher = place.tenant;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) {
    const SlotId slot = block.slots[part];
    record.leases += references(slot);
    PoolOf(slot).Retain(Local(slot));  // the index's own hold
    MoveCharge(slot, account);
  }
  QUIRE_CHECK(blocks_.Add(record) == id);
  ++account.block_count;
  AddLease(block.parent);
  account.ghosts.Remove(record.key);
  ++counters_.published_total;
  return {.block = id, .slots = block.slots};
}

// Puts a block into the tree, and takes the memory for what else has to know of it: all or, with
// std::bad_alloc, nothing.
BlockId Core::ReserveInIndex(index::RootId root, Tenant& account, const NewBlock& block,
                             const Digest& root_key) {
  try {
    if (root.number() >= roots_.size()) roots_.resize(root.number() + 1);
    if (account.roots.size() == account.roots.capacity()) {
      account.roots.reserve(2 * account.roots.size() + 1);
    }
    const BlockId id = blocks_.Reserve(block.slots);
    index_.Insert(root, block.parent, block.tokens, {&id, 1});
    return id;
  } catch (const std::bad_alloc&) {
    if (index_.empty(root)) index_.RemoveRoot(root_key);
    throw;
  }
}

std::optional<BlockId> Core::FindSame(const Place& place, const NewBlock& block) {
  const auto root = index_.FindRoot(place.root_key);
  if (!root) return std::nullopt;
  return index_.FindChild(*root, block.parent, block.tokens);
}

bool Core::IsWhole(const BlockRecord& record) const {
  for (uint32_t part = 0; part < layout_.part_count(); ++part) {
    if (record.slots[part].is_none()) return false;
  }
  return true;
}

// The block is known. Of the parts that are there the caller gets a hold; those that a window let
// go of are filled with the caller's.
Published Core::Join(BlockId same, const NewBlock& block, const PerClass<uint32_t>& crcs) {
  if (blocks_.at(same).standing != Standing::kGood) return {};
  if (shrinking_) MoveBelowEnd(same);
  Published published{.block = same};
  bool deduplicated = false;
  for (uint32_t part = 0; part < layout_.part_count(); ++part) {
    const SlotId own = block.slots[part];
    if (const SlotId there = blocks_.at(same).slots[part]; !there.is_none()) {
      // A fork may have published the slot that both hold.
      if (there != own) HoldSlot(there);
      published.slots[part] = there;
      deduplicated = true;
      continue;
    }
    AddPublishedSlot(same, own, crcs[part]);
    published.slots[part] = own;
  }
  if (deduplicated) ++counters_.deduplicated_total;
  return published;
}

void Core::AddPublishedSlot(BlockId block, SlotId slot, uint32_t crc) {
  blocks_.ReserveSlot(slot);
  if (blocks_.at(block).hollow()) --hollow_;
  blocks_.AddSlot(block, ClassOf(slot), slot);
  blocks_.at(block).crcs[ClassOf(slot)] = crc;
  for (uint32_t holders = references(slot); holders > 0; --holders) AddLease(block);
  PoolOf(slot).Retain(Local(slot));
  MoveCharge(slot, TenantOf(blocks_.at(block).account));
  List(block);
}

bool Core::Intact(SlotId slot) {
  BlockId block;
  uint32_t crc = 0;
  {
    MutexLock lock(mutex_);
    block = blocks_.InSlot(slot);
    if (block.is_none()) return true;
    if (blocks_.at(block).standing == Standing::kDamaged) return false;
    crc = blocks_.at(block).crcs[ClassOf(slot)];
  }
  if (Checksum(slot) == crc) return true;
  MutexLock lock(mutex_);
  Quarantine(block, Standing::kDamaged);
  return false;
}

// Takes blocks out of use with everything that continues them: if one is damaged, that may have
// been computed from the damaged bytes. What was erased may not be called damaged any more. Returns
// what was marked, parents before children.
std::vector<BlockId> Core::Mark(std::span<const BlockId> blocks, Standing standing) {
  const auto stays = [&](BlockId block) QUIRE_REQUIRES(mutex_) {
    const Standing now = blocks_.at(block).standing;
    return now == standing || (now != Standing::kGood && standing != Standing::kErased);
  };
  std::vector<BlockId> marked;
  std::vector<BlockId> subtree;
  for (const BlockId block : blocks) {
    if (stays(block)) continue;  // and so does what continues it
    subtree.clear();
    index_.AppendSubtree(block, subtree);
    for (const BlockId id : subtree) {
      if (stays(id)) continue;
      blocks_.at(id).standing = standing;
      marked.push_back(id);
    }
  }
  return marked;
}

void Core::Quarantine(BlockId block, Standing standing) {
  if (blocks_.at(block).standing != Standing::kGood) return;
  const std::vector<BlockId> marked = Mark({&block, 1}, standing);
  EndPinsOfBadBlocks();
  // What is leased goes with its last lease; a hollow block may go with the one after it.
  for (size_t i = marked.size(); i > 0; --i) {
    const BlockId id = marked[i - 1];
    if (blocks_.contains(id) && blocks_.at(id).leases == 0) Drop(id, MissReason::kEvicted);
  }
}

void Core::CheckIndex() const {
  MutexLock lock(mutex_);
  index_.CheckInvariants();
  QUIRE_CHECK(index_.block_count() == blocks_.size());
  uint64_t roots = 0;
  for (const auto& tenant : tenants_) roots += tenant->roots.size();
  QUIRE_CHECK(index_.root_count() == roots);  // none without blocks
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
    ++report.blocks;
    for (uint32_t c = 0; c < class_count(); ++c) {
      const SlotId slot = blocks_.at(id).slots[c];
      if (slot.is_none() || Checksum(slot) == blocks_.at(id).crcs[c]) continue;
      ++report.damaged;
      Quarantine(id, Standing::kDamaged);
      break;
    }
  }
  return report;
}

}  // namespace quire::cache

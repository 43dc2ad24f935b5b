#include "cache/state/directory.h"

#include <algorithm>
#include <new>
#include <utility>

namespace quire::cache {

Directory::Directory(const SlotClasses& classes, bool announces)
    : classes_(classes), index_(classes.block_tokens()), told_(announces) {}

bool Directory::IsWhole(BlockId block) const {
  const auto sealed = std::span(at(block).slots).first(classes_.group_count());
  return std::ranges::none_of(sealed, &SlotId::is_none);
}

void Directory::Find(const Digest& root_key, BlockId after, std::span<const TokenId> tokens,
                     std::vector<BlockId>& path) const {
  if (const auto root = index_.FindRoot(root_key)) {
    touched_.Count(index_.Find(*root, after, tokens, path));
  }
}

std::optional<uint32_t> Directory::CommonTokens(const Digest& root_key, BlockId after,
                                                std::span<const TokenId> tokens) const {
  constexpr uint32_t kChildrenMax = 64;
  const auto root = index_.FindRoot(root_key);
  if (!root) return std::nullopt;
  return index_.CommonTokens(*root, after, tokens, kChildrenMax);
}

std::optional<BlockId> Directory::FindChild(const Digest& root_key, BlockId parent,
                                            std::span<const TokenId> tokens) const {
  const auto root = index_.FindRoot(root_key);
  if (!root) return std::nullopt;
  return index_.FindChild(*root, parent, tokens);
}

Directory::Account& Directory::OfAccount(TenantId account) {
  if (account.number() >= accounts_.size()) accounts_.resize(account.number() + 1);
  return accounts_[account.number()];
}

BlockId Directory::Add(const Digest& root_key, std::shared_ptr<const Domain> domain, BlockId parent,
                       std::span<const TokenId> tokens, const BlockRecord& record) {
  touched_.Count(1);
  Account& account = OfAccount(record.account);
  const index::RootId root = index_.Root(root_key);
  const bool is_first = index_.empty(root);
  const BlockId block = Reserve(root, root_key, account, parent, tokens, record.slots);
  // Nothing fails from here on.
  if (is_first) {
    roots_[root.number()] = {.key = root_key, .domain = std::move(domain)};
    account.roots.push_back(root);
  }
  if (free_.empty()) {
    entries_.push_back({.record = record, .used = true});
  } else {
    free_.pop_back();
    entries_[block.number()] = {.record = record, .used = true};
  }
  for (const SlotId slot : record.slots) {
    if (!slot.is_none()) Link(slot, block);
  }
  leases_.Begin(block, 0);
  if (record.announced) told_.Stored(block);
  ++account.block_count;
  return block;
}

// Puts a block into the tree, and takes the memory for the other tables: all or, with
// std::bad_alloc, nothing.
BlockId Directory::Reserve(index::RootId root, const Digest& root_key, Account& account,
                           BlockId parent, std::span<const TokenId> tokens,
                           std::span<const SlotId> slots) {
  try {
    if (root.number() >= roots_.size()) roots_.resize(root.number() + 1);
    if (account.roots.size() == account.roots.capacity()) {
      account.roots.reserve(2 * account.roots.size() + 1);
    }
    if (free_.empty()) {
      if (entries_.size() == entries_.capacity()) {
        entries_.reserve(std::max<size_t>(kEntriesMin, 2 * entries_.size()));
      }
      free_.reserve(entries_.capacity());  // so that Remove needs no memory
    }
    for (const SlotId slot : slots) ReserveSlot(slot);
    const BlockId block =
        free_.empty() ? BlockId(static_cast<uint32_t>(entries_.size())) : free_.back();
    leases_.Reserve(block.number() + 1);
    write_behind_.Reserve(block.number() + 1);
    told_.Reserve(block.number() + 1);
    index_.Insert(root, parent, tokens, {&block, 1});
    return block;
  } catch (const std::bad_alloc&) {
    if (index_.empty(root)) index_.RemoveRoot(root_key);
    throw;
  }
}

void Directory::Remove(BlockId block) {
  touched_.Count(1);
  QUIRE_CHECK(leases_.of(block) == 0);
  const TenantId account = at(block).account;
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    if (!at(block).slots[c].is_none()) RemoveSlot(block, c);
  }
  --empty_count_;  // it has no slot by now
  write_behind_.Remove(block);
  told_.Gone(block, at(block).key);
  const index::RootId root = index_.root(block);
  index_.Remove(block);
  if (index_.empty(root)) {
    index_.RemoveRoot(roots_[root.number()].key);
    roots_[root.number()] = {};
    std::erase(OfAccount(account).roots, root);
  }
  --OfAccount(account).block_count;
  entries_[block.number()].used = false;
  free_.push_back(block);
}

void Directory::ReserveSlot(SlotId slot) {
  if (slot.is_none() || slot.number() < block_of_slot_.size()) return;
  block_of_slot_.resize(slot.number() + 1);
}

void Directory::Link(SlotId slot, BlockId block) {
  ReserveSlot(slot);
  QUIRE_CHECK(block_of_slot_[slot.number()].is_none());
  block_of_slot_[slot.number()] = block;
  if (!classes_.is_sealed(classes_.ClassOf(slot))) ++twin_slots_;
}

void Directory::AddSlot(BlockId block, SlotId slot, uint32_t crc) {
  const uint32_t c = classes_.ClassOf(slot);
  BlockRecord& record = Record(block);
  QUIRE_CHECK(record.slots[c].is_none());
  if (record.is_empty()) --empty_count_;
  Link(slot, block);
  record.slots[c] = slot;
  record.crcs[c] = crc;
}

void Directory::RemoveSlot(BlockId block, uint32_t slot_class) {
  SlotId& slot = Record(block).slots[slot_class];
  block_of_slot_[slot.number()] = BlockId::None();
  if (!classes_.is_sealed(slot_class)) --twin_slots_;
  slot = SlotId::None();
  if (at(block).is_empty()) ++empty_count_;
}

void Directory::MoveSlot(BlockId block, uint32_t slot_class, SlotId to) {
  const uint32_t crc = at(block).crcs[slot_class];
  RemoveSlot(block, slot_class);
  AddSlot(block, to, crc);
}

bool Directory::Mark(BlockId block, BlockState block_state) {
  touched_.Count(1);
  BlockState& now = Record(block).block_state;
  if (now == block_state) return false;
  if (now != BlockState::kGood && block_state != BlockState::kErased) return false;
  now = block_state;
  told_.Gone(block, at(block).key);
  return true;
}

void Directory::SetBelow(BlockId block, bool twins, Below below) {
  write_behind_.SetBelow(block, twins, below);
  if (!twins && below == Below::kDurable) told_.Durable(block);
}

void Directory::CheckInvariants() const {
  index_.CheckInvariants();
  QUIRE_CHECK(index_.block_count() == size());
  uint64_t roots = 0;
  uint64_t blocks = 0;
  for (const Account& account : accounts_) {
    roots += account.roots.size();
    blocks += account.block_count;
  }
  QUIRE_CHECK(index_.root_count() == roots);  // none without blocks
  QUIRE_CHECK(blocks == size());
  write_behind_.CheckInvariants();
  told_.CheckInvariants();
  uint64_t empty_blocks = 0;
  uint64_t twins = 0;
  for (uint32_t i = 0; i < ids_end(); ++i) {
    if (!entries_[i].used) continue;
    const BlockRecord& record = entries_[i].record;
    empty_blocks += record.is_empty() ? 1 : 0;
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      if (record.slots[c].is_none()) continue;
      QUIRE_CHECK(InSlot(record.slots[c]) == BlockId(i));
      twins += classes_.is_sealed(c) ? 0 : 1;
    }
  }
  QUIRE_CHECK(empty_blocks == empty_count_);
  QUIRE_CHECK(twins == twin_slots_);
}

}  // namespace quire::cache

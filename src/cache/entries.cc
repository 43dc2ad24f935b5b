#include "cache/entries.h"

#include <algorithm>

#include "cache/core.h"
#include "cache/leases.h"

namespace quire::cache {
namespace {

// The index has a hold of each of its slots, and pins have another of those that they keep.
uint32_t HoldersOf(const State& state, const BlockRecord& record) {
  uint32_t holders = 0;
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    if (record.slots[c].is_none()) continue;
    const uint32_t own = record.IsPinned(c) ? 2 : 1;
    holders = std::max(holders, state.slots.references(record.slots[c]) - own);
  }
  return holders;
}

uint64_t SecondsSince(uint64_t now_s, uint64_t then_s) { return now_s - std::min(now_s, then_s); }

CacheEntry EntryOf(const State& state, BlockId block, uint64_t now_us) {
  constexpr uint64_t kSecond = 1'000'000;
  const Directory& directory = state.directory;
  const BlockRecord& record = directory.at(block);
  const BlockId parent = directory.parent(block);
  const uint64_t used_us = state.accounts.unused_since_us(block).value_or(now_us);
  return {.key = PolicyKey(record.key),
          .parent_key = parent.is_none() ? 0 : PolicyKey(directory.at(parent).key),
          .account = record.account,
          .first_token = uint64_t{directory.depth(block)} * state.classes.block_tokens(),
          .holders = HoldersOf(state, record),
          .pinned = record.pins > 0,
          .in_memory = directory.IsWhole(block),
          .in_store = record.sealed_below == Below::kDurable,
          .age_s = SecondsSince(now_us / kSecond, record.published_s),
          .idle_s = SecondsSince(now_us, used_us) / kSecond};
}

}  // namespace

bool AppendEntries(const State& state, uint32_t begin, TenantId account,
                   std::vector<CacheEntry>& entries) {
  const uint64_t now_us = state.clock.NowMicros();
  const uint32_t ids_end = state.directory.ids_end();
  const uint32_t end =
      static_cast<uint32_t>(std::min<uint64_t>(ids_end, uint64_t{begin} + kEntriesPerHold));
  for (uint32_t i = begin; i < end; ++i) {
    const BlockId block(i);
    if (!state.directory.contains(block)) continue;
    state.directory.CountTouched(2);
    if (!account.is_none() && state.directory.at(block).account != account) continue;
    if (BlockStateOf(state, block) != BlockState::kGood) continue;
    entries.push_back(EntryOf(state, block, now_us));
  }
  return end < ids_end;
}

Result<std::vector<CacheEntry>> Core::Entries(const EntriesRequest& request) {
  TenantId account = TenantId::None();
  if (!request.tenant.is_none()) {
    const auto known = With([&](State& state) -> Result<TenantId> {
      QUIRE_TRY(state.accounts.Check(request.tenant));
      return state.accounts.account_of(request.tenant);
    });
    QUIRE_ASSIGN(account, known);
  }
  std::vector<CacheEntry> entries;
  bool more = true;
  for (uint32_t begin = 0; more && entries.size() < request.entries_max; begin += kEntriesPerHold) {
    if (entries.capacity() - entries.size() <
        kEntriesPerHold) {  // no memory is taken under the lock
      entries.reserve(2 * entries.size() + kEntriesPerHold);
    }
    more = With([&](State& state) { return AppendEntries(state, begin, account, entries); });
  }
  if (entries.size() > request.entries_max) entries.resize(request.entries_max);
  return entries;
}

}  // namespace quire::cache

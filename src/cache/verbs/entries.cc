#include "cache/verbs/entries.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/verbs/leases.h"

namespace quire::cache {
namespace {

// The index has one reference on each of a block's slots, and pins have another on those that they
// keep.
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
  const BlockId parent = directory.tree().parent(block);
  const uint64_t used_us = state.accounts.order().unused_since_us(block).value_or(now_us);
  return {.key = PolicyKey(record.key),
          .parent_key = parent.is_none() ? 0 : PolicyKey(directory.at(parent).key),
          .account = record.account,
          .first_token = uint64_t{directory.tree().depth(block)} * state.classes.block_tokens(),
          .holders = HoldersOf(state, record),
          .pinned = record.pins > 0,
          .in_memory = directory.IsWhole(block),
          .in_store = directory.write_behind().below(block, /*twins=*/false) == Below::kDurable,
          .age_s = SecondsSince(now_us / kSecond, record.published_s),
          .idle_s = SecondsSince(now_us, used_us) / kSecond};
}

// How BlockMapOf shows the slots of blocks with ids [begin, begin + kBlocksPerHold). False: no ids
// are above these.
bool MarkSlots(const State& state, uint32_t begin, PerClass<std::vector<char>>& marks) {
  const SlotClasses& classes = state.classes;
  const uint32_t end = std::min(state.directory.ids_end(), begin + kBlocksPerHold);
  for (uint32_t i = begin; i < end; ++i) {
    if (!state.directory.contains(BlockId(i))) continue;
    const BlockRecord& record = state.directory.at(BlockId(i));
    const bool is_leased = state.directory.leases().of(BlockId(i)) > 0;
    for (uint32_t c = 0; c < classes.count(); ++c) {
      if (record.slots[c].is_none()) continue;
      const uint32_t slot = classes.Local(record.slots[c]).number();
      if (slot >= marks[c].size()) marks[c].resize(slot + 1, 'p');
      const bool unheld =
          state.slots.references(record.slots[c]) == 1 && classes.reach(c).windowed();
      marks[c][slot] = !is_leased ? 's' : unheld ? 'w' : 'S';
    }
  }
  return end < state.directory.ids_end();
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
    state.directory.touched().Count(2);
    if (!account.is_none() && state.directory.at(block).account != account) continue;
    if (BlockStateOf(state, block) != BlockState::kGood) continue;
    entries.push_back(EntryOf(state, block, now_us));
  }
  return end < ids_end;
}

Result<std::vector<CacheEntry>> EntriesOf(LockedState& cache, const EntriesRequest& request) {
  TenantId account = TenantId::None();
  if (!request.tenant.is_none()) {
    const auto known = cache.With([&](State& state) -> Result<TenantId> {
      QUIRE_TRY(state.accounts.tenants().Check(request.tenant));
      return state.accounts.tenants().account_of(request.tenant);
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
    more = cache.With([&](State& state) { return AppendEntries(state, begin, account, entries); });
  }
  if (entries.size() > request.entries_max) entries.resize(request.entries_max);
  return entries;
}

CacheStats StatsOf(const State& state) {
  const SlotClasses& classes = state.classes;
  CacheStats stats = state.counters;
  const quota::Ledger& ledger = state.accounts.charges().ledger();
  stats.hot_bytes_limit = state.slots.capacity().hot_bytes;
  stats.hot_bytes_used = ledger.used_bytes();
  stats.hot_bytes_peak = ledger.peak_bytes();
  stats.sealed = state.slots.pool(0).stats();
  const uint32_t groups = classes.group_count();
  const bool encodes = classes.count() > groups;
  if (groups > 1) stats.sealed_second = state.slots.pool(1).stats();
  if (encodes) stats.open = state.slots.pool(classes.OpenClassOf(0)).stats();
  if (encodes && groups > 1) stats.open_second = state.slots.pool(classes.OpenClassOf(1)).stats();
  // A block that is being moved is counted at its old place.
  const PerClass<SlotClassStats*> of_class = {
      &stats.sealed, groups > 1 ? &stats.sealed_second : &stats.open,
      groups > 1 ? &stats.open : nullptr, groups > 1 ? &stats.open_second : nullptr};
  for (uint32_t c = 0; c < classes.count(); ++c) {
    if (!state.reading.to[c].is_none()) --of_class[c]->slots_used;
  }
  stats.published_blocks = state.directory.size();
  state.accounts.tenants().ForEach([&](TenantId tenant) {
    stats.evictable_blocks += state.accounts.order().listed_whole(tenant);
    stats.passed_blocks += state.accounts.order().listed_slots(tenant);
    stats.pinned_blocks += state.accounts.charges().pinned_blocks(tenant);
  });
  stats.hollow_blocks = state.directory.empty_count();
  stats.twin_slots = state.directory.twin_slots();
  stats.stored_blocks = state.directory.write_behind().stored();
  stats.unwritten_blocks = state.directory.write_behind().queued();
  stats.sequence_bytes = state.sequence_bytes;
  return stats;
}

std::string BlockMapOf(const LockedState& cache) {
  const SlotClasses& classes = cache.classes();
  // The marks are taken first: the pool's lock is held while it reads them.
  PerClass<std::vector<char>> marks;
  bool more = true;
  for (uint32_t begin = 0; more; begin += kBlocksPerHold) {
    more = cache.Look([&](const State& state) { return MarkSlots(state, begin, marks); });
  }
  std::string map;
  for (uint32_t c = 0; c < classes.count(); ++c) {
    const uint32_t group = classes.GroupOf(c);
    if (classes.count() > 1) {
      const std::string layers =
          !classes.reach(group).windowed()
              ? std::string("full attention")
              : fmt::format("a window of {} tokens", cache.layout().group(group).window_tokens);
      map += fmt::format("{} slots, layers with {}:\n", classes.is_sealed(c) ? "sealed" : "open",
                         layers);
    }
    map += cache.slots().pool(c).Map([&](SlotId slot, uint32_t) {
      const std::vector<char>& of_class = marks[c];
      return slot.number() < of_class.size() ? of_class[slot.number()] : 'p';
    });
  }
  return map;
}

std::vector<FreeRuns> FreeSlotsOf(const LockedState& cache) {
  std::vector<FreeRuns> classes;
  for (uint32_t c = 0; c < cache.classes().count(); ++c) {
    FreeRuns runs = cache.slots().pool(c).free_runs();
    runs.slots = cache.classes().is_sealed(c) ? "sealed" : "open";
    if (cache.classes().GroupOf(c) > 0) runs.slots += "_second";
    classes.push_back(std::move(runs));
  }
  return classes;
}

}  // namespace quire::cache

#include "cache/below.h"

#include <algorithm>

#include "base/canary.h"
#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/leases.h"
#include "cache/quarantine.h"

namespace quire::cache {
namespace {

bool HasTwins(const State& state, const BlockRecord& record) {
  if (state.classes.count() == state.classes.group_count()) return false;
  for (uint32_t c = state.classes.group_count(); c < state.classes.count(); ++c) {
    if (record.slots[c].is_none()) return false;
  }
  return true;
}

// The sealed form goes first: twins alone are of no use.
std::optional<bool> NextForm(const State& state, BlockId block) {
  const WriteBehind& stored = state.directory.write_behind();
  if (stored.below(block, /*twins=*/false) == Below::kNothing) {
    return state.directory.IsWhole(block) ? std::optional(false) : std::nullopt;
  }
  const bool lacks_twins = stored.below(block, /*twins=*/true) == Below::kNothing;
  if (lacks_twins && HasTwins(state, state.directory.at(block))) return true;
  return std::nullopt;
}

}  // namespace

void Offer(State& state, BlockId block) {
  WriteBehind& writes = state.directory.write_behind();
  if (!state.has_store || writes.IsQueued(block)) return;
  const BlockRecord& record = state.directory.at(block);
  if (state.accounts.tenants().options(record.account).ttl_us != 0) return;
  if (!NextForm(state, block)) return;
  const BlockId parent = state.directory.tree().parent(block);
  if (!parent.is_none() && !writes.IsQueued(parent) &&
      writes.below(parent, /*twins=*/false) == Below::kNothing) {
    return;
  }
  writes.Queue(block, /*first=*/Planted(Canary::kTrustChildren));
}

std::optional<BlockToWrite> NextWrite(State& state) {
  WriteBehind& writes = state.directory.write_behind();
  for (uint32_t i = 0; i < kBlocksPerHold; ++i) {
    const BlockId block = writes.first();
    if (block.is_none()) return std::nullopt;
    const auto twins = NextForm(state, block);
    if (!twins || BlockStateOf(state, block) != BlockState::kGood) {
      writes.Unqueue(block);
      continue;
    }
    const BlockRecord& record = state.directory.at(block);
    const BlockId parent = state.directory.tree().parent(block);
    const auto tokens = state.directory.tree().tokens(block);
    BlockToWrite write = {.form = {.block = block, .key = record.key, .twins = *twins},
                          .parent_key = parent.is_none() ? state.directory.RootKeyOf(block)
                                                         : state.directory.at(parent).key,
                          .block_index = state.directory.tree().depth(block),
                          .erase_epoch = record.below_epoch,
                          .account = record.account == kDefaultTenant
                                         ? std::string()
                                         : state.accounts.tenants().options(record.account).name,
                          .tokens = {tokens.begin(), tokens.end()},
                          .crcs = record.crcs};
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      if (state.classes.is_sealed(c) == !*twins) write.slots[c] = record.slots[c];
    }
    // Nothing fails from here on.
    writes.Unqueue(block);
    writes.SetBelow(block, *twins, Below::kWriting);
    state.reading.Add(write.slots);
    write.is_last = !NextForm(state, block);
    if (!write.is_last) writes.Queue(block, /*first=*/true);
    return write;
  }
  return std::nullopt;
}

void NoteUsed(State& state, BlockId block) {
  if (state.used_below.size() < state.used_below.capacity()) state.used_below.push_back(block);
}

std::vector<StoredForm> TakeUsed(State& state) {
  std::vector<BlockId>& used = state.used_below;
  const size_t count = std::min<size_t>(used.size(), kBlocksPerHold);
  std::vector<StoredForm> forms;
  forms.reserve(2 * count);
  for (size_t i = 0; i < count; ++i) {
    const BlockId block = used[i];
    if (!state.directory.contains(block)) continue;
    if (BlockStateOf(state, block) != BlockState::kGood) continue;
    const BlockRecord& record = state.directory.at(block);
    for (const bool twins : {false, true}) {
      if (state.directory.write_behind().below(block, twins) != Below::kDurable) continue;
      forms.push_back({.block = block, .key = record.key, .twins = twins});
    }
  }
  used.erase(used.begin(), used.begin() + static_cast<ptrdiff_t>(count));
  return forms;
}

void OfferAgain(State& state, std::span<const StoredForm> lost) {
  for (const StoredForm& form : lost) {
    EndWrite(state, form, Below::kNothing, /*again=*/false);
    if (state.directory.contains(form.block)) Offer(state, form.block);
  }
}

void EndWrite(State& state, const StoredForm& form, Below below, bool again) {
  if (!state.directory.contains(form.block)) return;
  const bool is_same = state.directory.at(form.block).key == form.key;
  if (!is_same && !Planted(Canary::kMistakeBlock)) return;
  state.directory.write_behind().SetBelow(form.block, form.twins, below);
  if (again) state.directory.write_behind().Queue(form.block, /*first=*/true);
}

Storing::Backlog Storing::backlog() const {
  return cache_.Look([](const State& state) -> Backlog {
    return {.queued = state.directory.write_behind().queued(),
            .lost_total = state.counters.evicted_unwritten_total};
  });
}

// Where the host cannot read the slots, their bytes are on their way to it when this returns.
void Storing::CopyOut(Taken& taken) {
  std::span<std::byte> left;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    const SlotId slot = taken.block.slots[c];
    if (slot.is_none()) continue;
    std::span<const std::byte> bytes = cache_.slots().HostBytes(slot);
    if (bytes.empty()) {
      if (!taken.chunk) {
        taken.chunk = cache_.write_staging()->Take();
        left = (*cache_.write_staging())[*taken.chunk];
      }
      const uint64_t slot_bytes = cache_.classes().slot_bytes(c);
      cache_.slots().CopyOut(slot, left.data());
      bytes = left.first(slot_bytes);
      left = left.subspan(slot_bytes);
    }
    cache_.shapes().Cut(c, bytes, taken.sections.bytes);
  }
}

// One pass over the bytes: those of the sections say what the checksum of the slot is.
bool Storing::IsIntact(Taken& taken) const {
  Sections& sections = taken.sections;
  for (const auto& bytes : sections.bytes) sections.crcs.push_back(Crc32c(bytes));
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    if (taken.block.slots[c].is_none()) continue;
    const auto [first, count] = cache_.shapes().sections(c);
    const auto crcs = std::span<const uint32_t>(sections.crcs).subspan(first, count);
    if (cache_.shapes().Join(c, crcs) != taken.block.crcs[c]) return false;
  }
  return true;
}

Result<bool> Storing::WriteNext(uint32_t most, const Writer& write, uint64_t& failed) {
  MutexLock one_at_a_time(cache_.reading_mutex());
  tier::Staging* const staging = cache_.write_staging();
  // Where the host copies, nobody waits for several at once.
  most = cache_.slots().host_accessible() ? 1 : std::min(most, kReadingMax);
  std::vector<Taken> all;
  all.reserve(most);
  struct EndAtEnd {
    ~EndAtEnd() {
      storing.cache_.With([&](State& state) { EndReading(state); });
      for (auto taken = all.rbegin(); taken != all.rend(); ++taken) {
        if (taken->chunk) storing.cache_.write_staging()->Give(*taken->chunk);
        if (!taken->given) storing.EndWrite(taken->block.form, Below::kNothing, again);
      }
    }
    Storing& storing;
    const std::vector<Taken>& all;
    bool again = false;  // those that were not given are offered again
  } end{.storing = *this, .all = all};
  while (all.size() < most) {
    auto block = cache_.With([](State& state) { return NextWrite(state); });
    if (!block) break;
    all.push_back({.block = *std::move(block)});
    CopyOut(all.back());
  }
  if (all.empty()) return false;
  BlockOps& ops = cache_.slots().ops();
  const auto there = staging == nullptr ? ops.Synchronize() : ops.SynchronizeCopies(CopyWay::kOut);
  if (!there) {
    failed = all.size();
    return std::unexpected(there.error());
  }
  for (Taken& taken : all) {
    const bool same = IsIntact(taken);
    AtSyncPoint("write: a block was read");
    if (same) {
      write(taken.block, taken.sections);
      taken.given = true;
      continue;
    }
    cache_.With([&](State& state) {
      // Unless it went meanwhile.
      const StoredForm& form = taken.block.form;
      if (!state.directory.contains(form.block)) return;
      if (state.directory.at(form.block).key == form.key) {
        Quarantine(state, form.block, BlockState::kDamaged);
      }
    });
    EndWrite(taken.block.form, Below::kNothing, /*again=*/false);
    taken.given = true;  // it has ended
    end.again = true;    // what continues it is refused then
    break;
  }
  return true;
}

void Storing::EndWrite(const StoredForm& form, Below below, bool again) {
  cache_.With([&](State& state) { cache::EndWrite(state, form, below, again); });
}

std::vector<StoredForm> Storing::TakeUsed() {
  return cache_.With([](State& state) { return cache::TakeUsed(state); });
}

void Storing::OfferAgain(std::span<const StoredForm> lost) {
  cache_.With([&](State& state) { cache::OfferAgain(state, lost); });
}

}  // namespace quire::cache

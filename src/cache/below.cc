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
    BlockToWrite write = {.form = {.block = block,
                                   .key = record.key,
                                   .block_index = state.directory.tree().depth(block),
                                   .twins = *twins},
                          .parent_key = parent.is_none() ? state.directory.RootKeyOf(block)
                                                         : state.directory.at(parent).key,
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
      forms.push_back({.block = block,
                       .key = record.key,
                       .block_index = state.directory.tree().depth(block),
                       .twins = twins});
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

void CopySections(const LockedState& cache, const PerClass<SlotId>& slots, bool twins,
                  std::span<std::byte> payload, RecordSections& sections) {
  const tier::RecordLayout& layout = cache.shapes().record(twins);
  const size_t count = layout.sections().size();
  sections.crcs.resize(count);
  for (size_t i = 0; i < count; ++i) {
    sections.bytes.push_back(payload.subspan(layout.offset(i), layout.sections()[i].bytes));
  }
  std::vector<SlotSection> of_slot;
  for (uint32_t c = 0; c < cache.classes().count(); ++c) {
    if (slots[c].is_none()) continue;
    const auto [first, sections_of_slot] = cache.shapes().sections(c);
    of_slot.clear();
    cache.shapes().CutPayload(c, payload.data(),
                              std::span(sections.crcs).subspan(first, sections_of_slot), of_slot);
    cache.slots().CopyOut(slots[c], of_slot);
  }
}

// Bytes that the host cannot read where they are come to where the store will have them, if it has
// memory for them, with their checksums.
void Storing::Fetch(Taken& taken, const RecordSink& sink) {
  const PerClass<SlotId>& slots = taken.block.slots;
  const bool reachable = std::ranges::all_of(slots, [&](SlotId slot) {
    return slot.is_none() || !cache_.slots().HostBytes(slot).empty();
  });
  RecordSections& sections = taken.sections;
  if (reachable) {
    for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
      if (slots[c].is_none()) continue;
      const std::span<const std::byte> bytes = cache_.slots().HostBytes(slots[c]);
      cache_.shapes().Cut(c, bytes, sections.bytes);
    }
    static_cast<void>(cache_.slots().ops().Synchronize());
    for (const auto& bytes : sections.bytes) sections.crcs.push_back(Crc32c(bytes));
    return;
  }
  std::span<std::byte> payload = sink.place(taken.block);
  taken.placed = !payload.empty();
  if (!taken.placed) {
    taken.chunk = cache_.write_staging()->Take();
    payload = (*cache_.write_staging())[*taken.chunk];
  }
  CopySections(cache_, slots, taken.block.form.twins, payload, sections);
  taken.there = cache_.slots().ops().RecordCopies(CopyWay::kOut);
}

Result<void> Storing::Await(const Taken& taken) const {
  if (taken.there != nullptr) taken.there->Wait();
  return cache_.slots().ops().outcome();
}

// The checksums of the sections say what the checksum of the slot is.
bool Storing::IsIntact(const Taken& taken) const {
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    if (taken.block.slots[c].is_none()) continue;
    const auto [first, count] = cache_.shapes().sections(c);
    const auto crcs = std::span(taken.sections.crcs).subspan(first, count);
    if (cache_.shapes().Join(c, crcs) != taken.block.crcs[c]) return false;
  }
  return true;
}

// Takes blocks out of the queue and begins to copy them, until so many are on their way.
void Storing::TakeNext(std::deque<Taken>& coming, uint64_t most, const RecordSink& sink) {
  while (coming.size() < most) {
    auto block = cache_.With([](State& state) { return NextWrite(state); });
    if (!block) return;
    coming.push_back({.block = *std::move(block)});
    Fetch(coming.back(), sink);
  }
}

// Its slots are read no more. True: somebody may wait for slots that still are.
bool Storing::EndTaken(const Taken& taken) {
  if (taken.chunk) cache_.write_staging()->Give(*taken.chunk);
  return cache_.With([&](State& state) {
    EndReading(state, taken.block.slots);
    return !state.reading.parked.empty();
  });
}

Result<bool> Storing::WriteNext(uint64_t most, const RecordSink& sink, uint64_t& failed) {
  MutexLock one_at_a_time(cache_.reading_mutex());
  // Where the host copies, nobody waits for several at once.
  const bool copies = !cache_.slots().host_accessible();
  const uint64_t at_once = copies ? kReadingMax : 1;
  uint64_t left = copies ? most : 1;  // to be given to the store
  std::deque<Taken> coming;           // in the order of the queue
  struct EndAtEnd {
    ~EndAtEnd() {
      // Nothing is on its way into memory that others get.
      if (!coming.empty()) {
        static_cast<void>(storing.cache_.slots().ops().SynchronizeCopies(CopyWay::kOut));
      }
      for (auto taken = coming.rbegin(); taken != coming.rend(); ++taken) {
        storing.EndTaken(*taken);
        if (taken->placed) sink.withdraw(taken->block);
        storing.EndWrite(taken->block.form, Below::kNothing, again);
      }
    }
    Storing& storing;
    const RecordSink& sink;
    const std::deque<Taken>& coming;
    bool again = false;  // they are offered again
  } end{.storing = *this, .sink = sink, .coming = coming};
  bool any = false;
  while (true) {
    TakeNext(coming, std::min(left, at_once), sink);
    if (coming.empty()) return any;
    any = true;
    // A store that has no memory for it just now gets no more than are on their way.
    if (!coming.back().placed) left = coming.size();
    // While one is given to the store, those after it are still coming.
    Taken& taken = coming.front();
    if (const auto there = Await(taken); !there) {
      failed = coming.size();
      return std::unexpected(there.error());
    }
    const bool same = IsIntact(taken);
    AtSyncPoint("write: a block was read");
    if (!same) break;
    sink.write(taken.block, taken.sections);
    const bool is_wanted = EndTaken(taken);
    coming.pop_front();
    left = is_wanted ? coming.size() : left - 1;
  }
  end.again = true;  // what continues it is refused then
  const Taken& damaged = coming.front();
  cache_.With([&](State& state) {
    // Unless it went meanwhile.
    const StoredForm& form = damaged.block.form;
    if (!state.directory.contains(form.block)) return;
    if (state.directory.at(form.block).key == form.key) {
      Quarantine(state, form.block, BlockState::kDamaged);
    }
  });
  EndTaken(damaged);
  EndWrite(damaged.block.form, Below::kNothing, /*again=*/false);
  if (damaged.placed) sink.withdraw(damaged.block);
  coming.pop_front();
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

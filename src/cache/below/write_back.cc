#include "cache/below/write_back.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/canary.h"
#include "base/sync_point.h"
#include "cache/below/store_state.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/quarantine.h"

namespace quire::cache {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr uint32_t kWritesPerTurn = 16;
constexpr uint64_t kWritesPerCall = 64;  // of a device, so that its link is not kept waiting
constexpr uint64_t kPaceWaitUs = 2000;   // while blocks wait for their turn to be written

// Twins that a store is given too. With a precision ladder it is given what is left of a block when
// it grows cold.
bool HasTwins(const State& state, const BlockRecord& record) {
  if (state.classes.count() == state.classes.group_count() || state.classes.has_ladder()) {
    return false;
  }
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

bool IsDurable(const State& state, BlockId block) {
  const WriteBehind& stored = state.directory.write_behind();
  if (stored.below(block, /*twins=*/false) != Below::kDurable) return false;
  return !HasTwins(state, state.directory.at(block)) ||
         stored.below(block, /*twins=*/true) == Below::kDurable;
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
                          .crcs = record.crcs,
                          .error = record.error};
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      if (state.classes.is_sealed(c) == !*twins) write.slots[c] = record.slots[c];
    }
    // Nothing fails from here on.
    writes.Unqueue(block);
    state.directory.SetBelow(block, *twins, Below::kWriting);
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
  WriteBehind& writes = state.directory.write_behind();
  state.directory.SetBelow(form.block, form.twins, below);
  if (again) writes.Queue(form.block, /*first=*/true);
  // Its twins may wait still, and are of no use without it.
  if (below == Below::kNothing && !again && !form.twins) writes.Unqueue(form.block);
}

WriteBack::WriteBack(LockedState& cache)
    : cache_(cache),
      store_(*cache.store()),
      transfers_(*cache.transfers()),
      pace_(transfers_.spread_us()),
      ends_(transfers_, /*wakes=*/true) {
  transfers_.Attach(*this);
}

WriteBack::~WriteBack() { transfers_.Detach(*this); }

WriteBack::Backlog WriteBack::backlog() const {
  return cache_.Look([](const State& state) -> Backlog {
    return {.queued = state.directory.write_behind().queued(),
            .lost_total = state.counters.evicted_unwritten_total};
  });
}

transfer::Worker::Turned WriteBack::Turn() {
  MutexLock lock(mutex_);
  Turned turned = {.worked = ends_.Run()};
  TouchUsed();
  const Backlog backlog = this->backlog();
  const uint64_t due = transfers_.Due(pace_, backlog.queued, backlog.lost_total);
  if (due < backlog.queued) turned.wait_us = kPaceWaitUs;
  turned.worked = WriteSome(due) || turned.worked;
  return turned;
}

// What memory hands out is in use below too, or a store that is full would recycle first what is
// wanted most. What it lost all the same is written again: not where memory holds about as much as
// the store, or the two would push each other's blocks out for ever.
void WriteBack::TouchUsed() {
  // Others go on using blocks meanwhile: no more than could wait before.
  for (size_t begin = 0; begin < kUsedBelowMax; begin += kBlocksPerHold) {
    std::vector<StoredForm> used = cache_.With([](State& state) { return TakeUsed(state); });
    if (used.empty()) return;
    std::vector<tier::RecordUse> uses;
    for (const StoredForm& form : used) {
      uses.push_back(
          {.key = form.twins ? TwinKey(form.key) : form.key, .block_index = form.block_index});
    }
    std::vector<tier::Presence> presence(uses.size(), tier::Presence::kAbsent);
    transfers_.Touch(uses, presence);
    if (cache_.options().hot_bytes > transfers_.stats().bytes_cap / 2) continue;
    size_t lost = 0;
    for (size_t i = 0; i < used.size(); ++i) {
      if (presence[i] == tier::Presence::kAbsent) used[lost++] = used[i];
    }
    if (lost == 0) continue;
    cache_.With([&](State& state) { OfferAgain(state, std::span(used).first(lost)); });
  }
}

bool WriteBack::WriteSome(uint64_t due) {
  bool worked = false;
  for (uint32_t left = kWritesPerTurn; left > 0 && due > 0 && transfers_.MayWrite();) {
    const auto written = WriteNext(due);
    if (!written) {  // a device failed
      transfers_.HoldBack();
      return worked;
    }
    if (*written == 0) return worked;
    ends_.Run();  // what was refused is the next one again
    worked = true;
    left -= std::min(left, *written);
  }
  return worked;
}

/// Those on their way, in the order of the queue. What is left of them at the end is put back, the
/// first one first, or just let go of.
struct WriteBack::Coming {
  ~Coming() {
    for (; !taken.empty(); taken.pop_back()) {
      if (taken.back().block) of.LetGo(taken.back(), again);
    }
  }

  WriteBack& of;
  std::deque<Taken> taken{};
  bool again = false;  // they are offered again
};

// Its slots are read no more. True: a caller may wait for slots that still are.
bool WriteBack::EndTaken(Taken& taken) {
  taken.record.reset();
  return cache_.With([&](State& state) {
    EndReading(state, taken.block->slots);
    return !state.reading.parked.empty();
  });
}

void WriteBack::LetGo(Taken& taken, bool again) {
  EndTaken(taken);
  cache_.With(
      [&](State& state) { cache::EndWrite(state, taken.block->form, Below::kNothing, again); });
}

// Takes the next block out of the queue and begins to copy it. False: there is none.
bool WriteBack::TakeNext(Taken& taken) {
  taken.block = cache_.With([](State& state) { return NextWrite(state); });
  if (!taken.block) return false;
  const BlockToWrite& block = *taken.block;
  const tier::RecordIdentity identity =
      cache_.shapes().IdentityOf({.key = block.form.key,
                                  .parent = block.parent_key,
                                  .publisher = tier::PublisherOf(block.account),
                                  .erase_epoch = block.erase_epoch,
                                  .block_index = block.form.block_index,
                                  .tokens = block.tokens},
                                 block.form.twins);
  taken.record.emplace(cache_, identity, block.form.twins);
  taken.record->Begin(block.slots, block.error);
  return true;
}

bool WriteBack::IsIntact(const LockedState& cache, const Taken& taken) {
  for (uint32_t c = 0; c < cache.classes().count(); ++c) {
    if (taken.block->slots[c].is_none()) continue;
    if (taken.record->CrcOf(c) != taken.block->crcs[c]) return false;
  }
  return true;
}

// Writes the next blocks, of those that are due, and returns how many. Of a device's a few are
// always on their way; where the host copies it is one. It ends early when the store has no memory
// for more, and when a holder let go of slots that are still read. A block that does not have its
// checksum any more is quarantined instead, and those after it are offered again.
Result<uint32_t> WriteBack::WriteNext(uint64_t& due) {
  MutexLock one_at_a_time(cache_.reading_mutex());
  // Where the host copies, several at once gain nothing.
  const bool copies = !cache_.slots().host_accessible();
  const uint64_t at_once = copies ? kReadingMax : 1;
  uint64_t left = copies ? std::min(kWritesPerCall, due) : 1;  // to be given to the store
  Coming rest{.of = *this};
  std::deque<Taken>& coming = rest.taken;
  for (uint32_t done = 0;; ++done) {
    while (coming.size() < std::min(left, at_once)) {
      if (TakeNext(coming.emplace_back())) continue;
      coming.pop_back();
      break;
    }
    if (coming.empty()) return done;
    // A store that has no memory for it just now gets no more than are on their way.
    if (!coming.back().record->placed()) left = coming.size();
    // While one is given to the store, those after it are still coming.
    Taken& taken = coming.front();
    if (const auto there = taken.record->Await(); !there) {
      store_.CountDropped(coming.size(), StoreOutcome::kIo, there.error().message);
      return std::unexpected(there.error());
    }
    const bool same = IsIntact(cache_, taken);
    AtSyncPoint("write: a block was read");
    if (!same) {
      rest.again = true;  // what continues it is refused then
      QuarantineDamaged(taken.block->form);
      LetGo(taken, /*again=*/false);
      coming.pop_front();
      return done + 1;
    }
    taken.record->Write(ends_, [this, form = taken.block->form](const StoreCompletion& end) {
      EndWrite(form, end.outcome);
    });
    if (taken.block->is_last && due > 0) --due;
    const bool is_wanted = EndTaken(taken);
    coming.pop_front();
    left = is_wanted ? coming.size() : left - 1;
    rest.again = !transfers_.MayWrite();
    if (rest.again) return done + 1;
  }
}

void WriteBack::QuarantineDamaged(const StoredForm& form) {
  cache_.With([&](State& state) {
    // Unless it went meanwhile.
    if (!state.directory.contains(form.block)) return;
    if (state.directory.at(form.block).key == form.key) {
      Quarantine(state, form.block, BlockState::kDamaged);
    }
  });
}

void WriteBack::EndWrite(const StoredForm& form, StoreOutcome outcome) {
  Below below = Below::kNothing;
  switch (outcome) {
    case StoreOutcome::kOk:
      store_.CountWritten();
      below = Below::kDurable;
      break;
    case StoreOutcome::kPresent: below = Below::kDurable; break;
    case StoreOutcome::kBusy:
    case StoreOutcome::kErased: break;
    default:
      store_.CountDropped(1, outcome);
      // What is wrong with one record is no reason not to write others.
      if (outcome == StoreOutcome::kNoSpace || outcome == StoreOutcome::kIo) transfers_.HoldBack();
  }
  const bool again = outcome == StoreOutcome::kBusy;
  cache_.With([&](State& state) { cache::EndWrite(state, form, below, again); });
}

}  // namespace quire::cache

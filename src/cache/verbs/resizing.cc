#include "cache/verbs/resizing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/sync_point.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"

namespace quire::cache {
namespace {

// Only the index, and perhaps a pin, holds it, so no caller has a pointer to it.
bool CanMove(const State& state, SlotId slot) {
  const BlockId block = state.directory.InSlot(slot);
  if (block.is_none()) return false;
  state.directory.touched().Count(1);
  const bool pinned = state.directory.at(block).IsPinned(state.classes.ClassOf(slot));
  return state.slots.references(slot) == (pinned ? 2U : 1U);
}

// The least budget that is possible now.
uint64_t LeastBytes(const State& state, std::span<const SlotId> held) {
  const uint64_t used_bytes = state.accounts.charges().ledger().used_bytes();
  const uint64_t evictable_bytes = state.accounts.EvictableFor(TenantId::None());
  uint64_t least_bytes = std::max(used_bytes - std::min(used_bytes, evictable_bytes),
                                  state.accounts.tenants().floors_bytes());
  for (const SlotId slot : held) {
    const uint64_t slots = uint64_t{state.classes.Local(slot).number()} + 1;
    least_bytes = std::max(least_bytes, slots * state.classes.charge_bytes(slot));
  }
  return least_bytes;
}

Result<void> CheckFloors(const State& state, const Capacity& to) {
  if (state.accounts.tenants().floors_bytes() <= to.ledger_bytes) return {};
  std::vector<std::string> names;
  state.accounts.tenants().ForEach([&](TenantId tenant) {
    const TenantOptions& options = state.accounts.tenants().options(tenant);
    if (options.floor_bytes == 0) return;
    names.push_back(fmt::format("\"{}\" {}", options.name, options.floor_bytes));
  });
  return Fail(
      ErrorCode::kNoSpace,
      fmt::format("resize: {} bytes are less than the floors of {} in all: {}", to.hot_bytes,
                  state.accounts.tenants().floors_bytes(), fmt::join(names, ", ")));
}

void SetCapacity(State& state, const Capacity& to) {
  state.slots.SetCapacity(to);
  state.accounts.SetCapacity(to);
  state.empty_max = state.classes.EmptyMax(to);
}

// Takes slots below the end for those of a block beyond it.
bool BeginMove(State& state, BlockId block) {
  if (!state.directory.contains(block)) return false;
  const PerClass<SlotId> slots = state.directory.at(block).slots;
  PerClass<SlotId> moving{};
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    if (slots[c].is_none() || !state.slots.IsBeyondEnd(slots[c])) continue;
    if (!CanMove(state, slots[c])) continue;
    moving[c] = slots[c];
    state.reading.to[c] = state.slots.TakeFor(slots[c]);
  }
  if (moving == PerClass<SlotId>{}) return false;
  state.reading.Add(moving);
  return true;
}

// Moves the block to the copies of those slots that have no lease now and are still present. Its
// id, checksum, account, pins and place in the order of eviction stay as they are.
void EndMove(State& state, BlockId block) {
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    const SlotId from = state.reading.slots[0][c];
    const SlotId to = state.reading.to[c];
    if (to.is_none() || state.directory.InSlot(from) != block || !CanMove(state, from)) continue;
    state.reading.to[c] = SlotId::None();
    state.slots.writers().Claim(to, state.slots.writers().of(from));  // an erasure may change it
    state.directory.MoveSlot(block, c, to);
    state.accounts.charges().SetPayer(to, state.accounts.charges().payer(from));
    if (state.directory.at(block).IsPinned(c)) {
      state.slots.Retain(to);
      QUIRE_CHECK(!state.slots.Release(from));
    }
    QUIRE_CHECK(state.slots.Release(from));
  }
}

}  // namespace

Result<void> Resizing::Resize(uint64_t hot_bytes) {
  MutexLock one_at_a_time(mutex_);
  const uint64_t most_bytes = std::max(cache_.options().hot_bytes, cache_.options().hot_bytes_max);
  if (hot_bytes > most_bytes) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("resize: {} bytes, but addresses are reserved for {} (hot_bytes_max)",
                            hot_bytes, most_bytes));
  }
  if (auto holds = cache_.classes().CheckHoldsABlock(hot_bytes); !holds) {
    return Fail(holds.error().code, "resize: " + holds.error().message);
  }
  const Capacity to = cache_.classes().CapacityFor(hot_bytes);
  const uint64_t now_bytes =
      cache_.With([](State& state) { return state.slots.capacity().hot_bytes; });
  return hot_bytes > now_bytes ? GrowTo(to) : ShrinkTo(to);
}

Result<void> Resizing::GrowTo(const Capacity& to) {
  // Blocks that an earlier shrink could not move come first.
  if (!MoveTail()) {
    return Fail(ErrorCode::kBusy,
                fmt::format("resize: to {} bytes: blocks that were looked up during the last "
                            "shrink are still in use; try again when they are not",
                            to.hot_bytes));
  }
  if (auto committed = cache_.slots().Commit(to); !committed) {
    return Fail(committed.error().code,
                fmt::format("resize: to {} bytes: {}", to.hot_bytes, committed.error().message));
  }
  cache_.With([&](State& state) { SetCapacity(state, to); });
  return {};
}

uint64_t Resizing::Trim() {
  {
    MutexLock one_at_a_time(mutex_);
    MoveTail();  // blocks that a shrink could not move
  }
  return cache_.slots().Trim();
}

// Held slots beyond the end.
std::vector<SlotId> Resizing::InTheWay(const Capacity& to) {
  const std::vector<SlotId> used =
      cache_.With([&](State& state) { return state.slots.UsedBeyond(to); });
  std::vector<SlotId> held;
  LockedState::ForPieces(used.size(), [&](size_t begin, size_t end) {
    cache_.With([&](State& state) {
      for (size_t i = begin; i < end; ++i) {
        if (state.slots.references(used[i]) > 0 && !CanMove(state, used[i])) {
          held.push_back(used[i]);
        }
      }
    });
  });
  return held;
}

// A caller that takes a slot beyond the end after this check is treated like one that looks it up
// after the shrink: the slot stays until it is released.
Result<void> Resizing::ShrinkTo(const Capacity& to) {
  const std::vector<SlotId> held = InTheWay(to);
  while (true) {
    uint64_t least_bytes = 0;
    const Result<bool> decided = cache_.With([&](State& state) -> Result<bool> {
      QUIRE_TRY(CheckFloors(state, to));
      least_bytes = LeastBytes(state, held);
      if (!held.empty() || least_bytes > to.ledger_bytes) return true;
      if (!EvictDownTo(state, to.ledger_bytes, cache_.classes().EmptyMax(to))) return false;
      // As many slots below the end are free now as are in use beyond it, and the ledger keeps it
      // so.
      SetCapacity(state, to);
      return true;
    });
    if (!decided) return std::unexpected(decided.error());
    if (!held.empty() || least_bytes > to.ledger_bytes) return Busy(to, held, least_bytes);
    if (*decided) break;
    AtSyncPoint("resize: before more is evicted");
    MutexLock until_read(cache_.reading_mutex());
  }
  MoveTail();
  return {};
}

// Moves blocks from beyond the end below it, one after the other. A block that is leased meanwhile
// stays; then the memory is given back later. True: nothing is left there.
bool Resizing::MoveTail() {
  const std::vector<BlockId> moving = cache_.With([](State& state) {
    std::vector<BlockId> blocks;
    for (const SlotId slot : state.slots.UsedBeyond(state.slots.capacity())) {
      blocks.push_back(state.directory.InSlot(slot));
    }
    return blocks;
  });
  for (const BlockId block : moving) {
    AtSyncPoint("resize: before a block moves");
    MutexLock one_at_a_time(cache_.reading_mutex());
    PerClass<SlotId> from{};
    PerClass<SlotId> to{};
    const bool begun = cache_.With([&](State& state) {
      const bool any = !block.is_none() && BeginMove(state, block);
      from = state.reading.slots[0];
      to = state.reading.to;
      return any;
    });
    if (!begun) continue;
    AtSyncPoint("resize: before a block is copied");
    for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
      if (!to[c].is_none()) cache_.slots().Copy(from[c], to[c]);
    }
    // A lookup may read the block there at once; a block that a device did not copy stays.
    const bool copied = cache_.slots().ops().Synchronize().has_value();
    AtSyncPoint("resize: a block was copied");
    const auto in_vain = cache_.With([&](State& state) {
      if (copied) EndMove(state, block);
      return state.reading.to;
    });
    // The block was leased at its old place. Its tenant may have been erased: no copy stays.
    for (const SlotId slot : in_vain) {
      if (!slot.is_none()) cache_.slots().Zero(slot);
    }
    if (in_vain != PerClass<SlotId>{}) static_cast<void>(cache_.slots().ops().Synchronize());
    cache_.With([](State& state) { EndReading(state); });
  }
  const bool is_empty = cache_.With([](State& state) {
    const bool empty = state.slots.UsedBeyond(state.slots.capacity()).empty();
    if (empty) state.slots.ForgetWritersBeyondEnd();
    return empty;
  });
  if (is_empty) cache_.slots().GiveBackTail();
  return is_empty;
}

// Names the holders as they are now: some may have taken or released slots since the check.
std::unexpected<Error> Resizing::Busy(const Capacity& to, std::span<const SlotId> held,
                                      uint64_t least_bytes) const {
  constexpr size_t kNamesMax = 8;
  const std::set<SlotId> slots(held.begin(), held.end());
  std::set<SlotId> unnamed = slots;
  std::vector<std::string> holders;
  uint64_t more = 0;
  uint64_t others = 0;
  sequences_.ForEach([&](const SequenceImpl& sequence) {
    const std::vector<SlotId> of_it = sequence.HeldOf(slots);
    if (of_it.empty()) return;
    for (const SlotId slot : of_it) unnamed.erase(slot);
    if (sequence.tenant() != kDefaultTenant) {
      ++others;
    } else if (holders.size() == kNamesMax) {
      ++more;
    } else {
      holders.push_back(fmt::format("sequence {} ({})", sequence.id().number(), of_it.size()));
    }
  });
  if (more > 0) holders.push_back(fmt::format("{} more sequences", more));
  if (others > 0) holders.push_back(fmt::format("{} sequences of other tenants", others));
  if (!unnamed.empty()) holders.push_back(fmt::format("plans and views ({})", unnamed.size()));
  const std::string why = slots.empty()
                              ? std::string("what is held or kept by floors is more")
                              : fmt::format("{} slots beyond its end are held and do not move: {}",
                                            slots.size(), fmt::join(holders, ", "));
  return Fail(ErrorCode::kBusy, fmt::format("resize: to {} bytes: {}; {} are possible now",
                                            to.hot_bytes, why, least_bytes));
}

}  // namespace quire::cache

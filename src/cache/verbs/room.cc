#include "cache/verbs/room.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/bits.h"

namespace quire::cache {
namespace {

// Charges slots that were just taken to the location's tenant, which is their writer.
void Claim(State& state, const PublishLocation& location,
           const PerClass<std::vector<SlotId>>& slots, std::vector<SlotId>& to_zero) {
  int64_t count = 0;
  for (const std::vector<SlotId>& of_class : slots) {
    for (const SlotId slot : of_class) {
      const bool others =
          state.slots.writers().Claim(slot, {.tenant = location.tenant, .epoch = location.epoch});
      if (others) to_zero.push_back(slot);
      state.accounts.charges().SetPayer(slot, location.tenant);
    }
    count += static_cast<int64_t>(of_class.size());
  }
  state.accounts.charges().CountWritten(location.tenant, location.epoch, count);
}

}  // namespace

Result<void> TakeSlots(State& state, const PublishLocation& location, uint64_t metadata_bytes,
                       PerClass<std::vector<SlotId>>& slots, std::vector<SlotId>& to_zero) {
  PerClass<uint64_t> counts{};
  uint64_t total = 0;
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    counts[c] = slots[c].size();
    total += counts[c];
  }
  to_zero.reserve(total);
  const uint64_t bytes = state.classes.Charge(counts) + metadata_bytes;
  if (!state.accounts.charges().TryCharge(location.tenant, bytes))
    return Fail(ErrorCode::kNoSpace, "");
  try {
    state.slots.Take(slots, [&](uint32_t end) { state.accounts.charges().ReserveSlots(end); });
  } catch (const std::bad_alloc&) {
    state.accounts.charges().Refund(location.tenant, bytes);
    throw;
  }
  Claim(state, location, slots, to_zero);
  state.sequence_bytes += metadata_bytes;
  return {};
}

Result<void> TakeRun(State& state, const PublishLocation& location, std::span<const SlotId> run,
                     uint64_t count, PerClass<std::vector<SlotId>>& added,
                     std::vector<SlotId>& to_zero) {
  const auto refused = [&](Error error) -> Result<void> {
    ++state.counters.refused_total;
    ++state.accounts.counters(location.tenant).refused_total;
    return std::unexpected(std::move(error));
  };
  const auto charge = CheckedMul(count, state.classes.charge_bytes(uint32_t{0}));
  const quota::Account& account = state.accounts.charges().account(location.tenant);
  const uint64_t capacity_bytes = account.capacity_bytes();
  if (charge && *charge > capacity_bytes) {
    return refused({ErrorCode::kNoSpace,
                    fmt::format("{} more consecutive blocks needed, {} bytes of {} (quota of "
                                "tenant \"{}\") free",
                                count, capacity_bytes, account.quota_bytes(),
                                state.accounts.tenants().options(location.tenant).name)});
  }
  const uint64_t free_bytes = state.accounts.charges().ledger().available_bytes();
  const bool fits = charge && *charge <= free_bytes;
  if (fits) {  // memory for the lists before anything is taken
    added[0].reserve(count);
    to_zero.reserve(count);
  }
  if (!fits || !state.accounts.charges().TryCharge(location.tenant, *charge)) {
    return refused({ErrorCode::kNoSpace,
                    fmt::format("{} more consecutive blocks needed, {} bytes of {} (hot_bytes) "
                                "free",
                                count, free_bytes, state.slots.capacity().hot_bytes)});
  }
  Result<void> taken;
  try {
    taken = state.slots.TakeRun(run, static_cast<uint32_t>(count), added,
                                [&](uint32_t end) { state.accounts.charges().ReserveSlots(end); });
  } catch (const std::bad_alloc&) {
    state.accounts.charges().Refund(location.tenant, *charge);
    throw;
  }
  if (!taken) {
    state.accounts.charges().Refund(location.tenant, *charge);
    return refused(std::move(taken).error());
  }
  Claim(state, location, added, to_zero);
  return {};
}

void CountRefusal(State& state, const PublishLocation& location, const PerClass<uint64_t>& counts,
                  Error& error) {
  ++state.counters.refused_total;
  ++state.accounts.counters(location.tenant).refused_total;
  if (error.message.empty()) error.message = CapacityMessage(state, location, counts);
}

Result<void> CheckCanFit(State& state, const PublishLocation& location, uint64_t tokens,
                         uint64_t blocks, uint64_t bytes) {
  const uint64_t limit_bytes = state.accounts.charges().ledger().limit_bytes();
  const uint64_t quota_bytes = state.accounts.charges().account(location.tenant).quota_bytes();
  if (bytes <= std::min(limit_bytes, quota_bytes)) return {};
  ++state.counters.refused_total;
  ++state.accounts.counters(location.tenant).refused_total;
  if (bytes > limit_bytes) {
    return Fail(
        ErrorCode::kTooLarge,
        fmt::format("open: can never fit: {} tokens need {} blocks, hot_bytes {} holds {}", tokens,
                    blocks, state.slots.capacity().hot_bytes, limit_bytes / (bytes / blocks)));
  }
  return Fail(ErrorCode::kTooLarge,
              fmt::format("open: can never fit: {} tokens need {} bytes, the quota of tenant "
                          "\"{}\" is {}",
                          tokens, bytes, state.accounts.tenants().options(location.tenant).name,
                          quota_bytes));
}

uint64_t EvictableBytesOf(const State& state, std::span<const BlockId> path, uint64_t begin,
                          uint64_t end) {
  const uint64_t tokens = path.size() * state.classes.block_tokens();
  uint64_t bytes = 0;
  for (uint64_t i = begin; i < end; ++i) {
    if (!state.directory.contains(path[i])) continue;  // it left meanwhile
    const BlockRecord& record = state.directory.at(path[i]);
    const bool is_leased = state.directory.leases().of(path[i]) > 0;
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      const SlotId slot = record.slots[c];
      if (slot.is_none()) continue;
      const bool alone = state.classes.reach(c).windowed() && state.slots.references(slot) == 1;
      if (is_leased && !alone) continue;  // it is held already
      if (!alone || state.classes.IsNeeded(c, i, tokens)) bytes += state.classes.charge_bytes(c);
    }
  }
  return bytes;
}

std::string CapacityMessage(const State& state, const PublishLocation& location,
                            const PerClass<uint64_t>& counts) {
  const SlotClasses& classes = state.classes;
  const Capacity& capacity = state.slots.capacity();
  const uint64_t bytes = state.accounts.CapacityBytes(location.asker());
  const std::string_view kind = location.may_evict ? "free or evictable" : "free";
  if (counts == PerClass<uint64_t>{}) {
    return fmt::format("bookkeeping of a sequence needed, {} bytes {} of {} (hot_bytes)", bytes,
                       kind, capacity.hot_bytes);
  }
  if (classes.count() == 1) {
    return fmt::format("{} blocks needed, {} {} of {} (hot_bytes {})", counts[0],
                       bytes / classes.charge_bytes(uint32_t{0}), kind, capacity.slots[0],
                       capacity.hot_bytes);
  }
  std::string needed;
  for (uint32_t c = 0; c < classes.count(); ++c) {
    if (counts[c] == 0) continue;
    needed +=
        fmt::format("{}{} {} blocks{}", needed.empty() ? "" : ", ", counts[c],
                    classes.is_sealed(c) ? "sealed" : "open",
                    classes.reach(classes.GroupOf(c)).windowed() ? " of layers with a window" : "");
  }
  return fmt::format("{} needed, {} bytes {} of {} (hot_bytes)", needed, bytes, kind,
                     capacity.hot_bytes);
}

}  // namespace quire::cache

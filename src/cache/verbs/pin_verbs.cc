#include "cache/verbs/pin_verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/sync_point.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/tenants.h"

namespace quire::cache {
namespace {

// The classes of block i that a new pin keeps, a bit for each; of open forms those that are read at
// the end of the pin.
uint8_t AddedClasses(const State& state, const FoundPath& path, uint64_t i) {
  const uint64_t tokens = path.blocks.size() * state.classes.block_tokens();
  const BlockRecord& record = state.directory.at(path.blocks[i]);
  uint8_t classes = 0;
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    const bool wanted =
        state.classes.is_sealed(c) || i >= state.classes.reach(c).first_needed(tokens);
    if (!wanted || record.slots[c].is_none() || record.IsPinned(c)) continue;
    classes |= static_cast<uint8_t>(1U << c);
  }
  return classes;
}

uint64_t BytesOf(const State& state, uint8_t classes) {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < state.classes.count(); ++c) {
    if (((classes >> c) & 1U) != 0) bytes += state.classes.charge_bytes(c);
  }
  return bytes;
}

}  // namespace

Result<void> CheckToPin(const SlotClasses& classes, uint64_t blocks, const FoundPath& path) {
  const auto has = [&](uint32_t slot_class, uint64_t block) {
    return !path.slots[slot_class][block].is_none();
  };
  const auto [hit, sealed] =
      UsableBlocks(classes, blocks * classes.block_tokens() + 1, path.good, has);
  if (hit == blocks) return {};
  if (sealed < blocks) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("pin: {} of {} blocks are in the cache", sealed, blocks));
  }
  return Fail(ErrorCode::kNotFound,
              fmt::format("pin: {} blocks are in the cache, but prompts can go on after {} of them "
                          "only: there is no twin at their end (residual_tokens {})",
                          blocks, hit, classes.residual_tokens()));
}

bool CountToPin(const State& state, const FoundPath& path, uint64_t begin, uint64_t end,
                uint64_t& bytes) {
  for (uint64_t i = begin; i < end; ++i) {
    if (!NeededOf(state, path, i)) return false;
    bytes += BytesOf(state, AddedClasses(state, path, i));
  }
  return true;
}

Result<void> CheckPinLimit(const State& state, const PublishLocation& location, uint64_t bytes) {
  const TenantId account = state.account_of(location);
  const uint64_t limit_bytes = state.accounts.charges().PinLimit(account);
  const uint64_t pinned_bytes = state.accounts.charges().pinned_bytes(account);
  if (bytes <= limit_bytes - std::min(limit_bytes, pinned_bytes)) return {};
  return Fail(ErrorCode::kNoSpace,
              fmt::format("pin: {} bytes more, tenant \"{}\" has {} pinned of the {} that its "
                          "quota and the floors of others allow",
                          bytes, state.accounts.tenants().options(account).name, pinned_bytes,
                          limit_bytes));
}

bool PinSome(State& state, const PublishLocation& location, const FoundPath& path, uint64_t begin,
             uint64_t end, BlockId& pinned) {
  const TenantId account = state.account_of(location);
  for (uint64_t i = begin; i < end; ++i) {
    if (!NeededOf(state, path, i)) return false;
    const BlockId block = path.blocks[i];
    // Some blocks have no slot to hold, so each block is leased until the next one is.
    AddLease(state, block);
    if (state.directory.AddPin(block)) state.accounts.charges().CountPinned(account, 1, 0);
    const BlockId before = std::exchange(pinned, block);
    if (!before.is_none()) DropLease(state, before);
    const uint8_t added = AddedClasses(state, path, i);
    const PerClass<SlotId> slots = state.directory.at(block).slots;
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      if (((added >> c) & 1U) == 0) continue;
      HoldSlot(state, slots[c]);
      state.directory.PinClass(block, c);
      state.accounts.charges().CountPinned(account, 0,
                                           static_cast<int64_t>(state.classes.charge_bytes(c)));
    }
  }
  return true;
}

bool EndPinning(State& state, const PublishLocation& location, BlockId pinned, Pins::Memory& memory,
                uint64_t until_us) {
  // Descendants of a block that was taken out of use are marked too, and their pins end then.
  if (BlockStateOf(state, pinned) != BlockState::kGood) return false;
  state.pins.AddFirst(std::move(memory), pinned, location.tenant, until_us);
  DropLease(state, pinned);
  return true;
}

Result<void> Unpin(State& state, const PublishLocation& location, const FoundPath& path) {
  const BlockId last = path.blocks.back();
  const bool is_there =
      state.directory.contains(last) && PolicyKey(state.directory.at(last).key) == path.keys.back();
  if (!is_there || !state.pins.contains(last, location.tenant)) {
    return Fail(
        ErrorCode::kNotFound,
        fmt::format("unpin: tenant \"{}\" has no pin of just these {} blocks",
                    state.accounts.tenants().options(location.tenant).name, path.blocks.size()));
  }
  if (state.pins.Remove(last, location.tenant)) AddLease(state, last);
  return {};
}

// From the last block to the root, so that parents stay more recent. With its last slot a block may
// leave the index together with blocks before it that have no bytes, so the next one is leased
// first.
void UnpinOne(State& state) {
  const BlockId block = state.pins.ending_at();
  const BlockId parent = state.directory.tree().parent(block);
  if (!parent.is_none()) AddLease(state, parent);
  state.pins.MoveEnding(parent);
  PerClass<SlotId> unpinned{};
  if (state.directory.DropPin(block)) {
    const BlockRecord& record = state.directory.at(block);
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      if (record.IsPinned(c)) unpinned[c] = record.slots[c];
    }
    state.accounts.charges().CountPinned(
        record.account, -1, -static_cast<int64_t>(BytesOf(state, record.pinned_classes)));
    state.directory.ClearPinnedClasses(block);
  }
  DropLease(state, block);
  for (const SlotId slot : unpinned) {
    if (!slot.is_none()) ReleaseSlot(state, slot);
  }
}

Result<FoundPath> Pinning::FindToPin(const AcquireRequest& request,
                                     const PublishLocation& location) {
  const uint64_t blocks = request.tokens.size() / cache_.block_tokens();
  if (blocks == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("pin: {} tokens are not one block of {}", request.tokens.size(),
                            cache_.block_tokens()));
  }
  FoundPath path = search_.FindBlocks(request.tokens.first(blocks * cache_.block_tokens()),
                                      location, /*explains=*/false);
  QUIRE_TRY(CheckToPin(cache_.classes(), blocks, path));
  return path;
}

Result<uint64_t> Pinning::Pin(const AcquireRequest& request, uint64_t ttl_us) {
  QUIRE_ASSIGN(const PublishLocation location, Locate(cache_, request, "pin"));
  // Two calls that both need the last room would make each other fail half way.
  MutexLock one_at_a_time(mutex_);
  LetTimePass(cache_);
  const uint64_t now_us = cache_.NowMicros();
  const uint64_t until_us =
      ttl_us == 0 || ttl_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + ttl_us;
  constexpr int kPinAttempts = 8;  // while other calls evict the found blocks
  for (int attempt = 0; attempt < kPinAttempts; ++attempt) {
    QUIRE_ASSIGN(const FoundPath path, FindToPin(request, location));
    QUIRE_ASSIGN(const bool pinned, PinPath(location, path, until_us));
    if (pinned) return path.blocks.size();
  }
  return Fail(ErrorCode::kNotFound, "pin: the blocks go as fast as they are found");
}

// False: a block left since it was found, and nothing is pinned.
Result<bool> Pinning::PinPath(const PublishLocation& location, const FoundPath& path,
                              uint64_t until_us) {
  // A pin without room must change nothing.
  uint64_t bytes = 0;
  bool all = true;
  LockedState::ForPieces(path.blocks.size(), [&](size_t begin, size_t end) {
    if (all) cache_.With([&](State& state) { all = CountToPin(state, path, begin, end, bytes); });
  });
  if (!all) return false;
  // An existing pin has kept the path since it was found, so the block is still the same.
  const Result<bool> is_another = cache_.With([&](State& state) -> Result<bool> {
    QUIRE_TRY(CheckPinLimit(state, location, bytes));
    return state.pins.AddAnother(path.blocks.back(), location.tenant, until_us);
  });
  if (!is_another || *is_another) return is_another;

  struct UndoAtEnd {
    ~UndoAtEnd() {
      if (pinned.is_none()) return;
      cache.With([&](State& state) { state.pins.Abandon(std::move(memory), pinned); });
    }
    LockedState& cache;
    Pins::Memory memory = Pins::Reserve();
    BlockId pinned{};  // blocks from here to the root are pinned by this call, without an entry in
                       // state.pins
  } undo{.cache = cache_};
  const auto pin_some = [&](size_t begin, size_t end) {
    if (!all) return;
    AtSyncPoint("pin: before blocks are pinned");
    cache_.With(
        [&](State& state) { all = PinSome(state, location, path, begin, end, undo.pinned); });
  };
  LockedState::ForPieces(path.blocks.size(), pin_some,
                         kBlocksPerHold / 2);  // each record is touched several times
  if (!all) return false;
  AtSyncPoint("pin: all blocks are pinned");
  all = cache_.With([&](State& state) {
    return EndPinning(state, location, undo.pinned, undo.memory, until_us);
  });
  if (all) undo.pinned = BlockId::None();
  return all;
}

Result<void> Pinning::Unpin(const AcquireRequest& request) {
  QUIRE_ASSIGN(const PublishLocation location, Locate(cache_, request, "unpin"));
  LetTimePass(cache_);
  QUIRE_ASSIGN(const FoundPath path, FindToPin(request, location));
  AtSyncPoint("unpin: its path was found");
  return cache_.With([&](State& state) { return cache::Unpin(state, location, path); });
}

}  // namespace quire::cache

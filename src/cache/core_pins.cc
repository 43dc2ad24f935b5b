// Paths that are pinned, and slots that a view holds again: piece by piece, all or nothing.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/sync_point.h"
#include "cache/core.h"
#include "cache/evict.h"
#include "cache/leases.h"
#include "cache/pin_verbs.h"

namespace quire::cache {

void Core::LetTimePass() {
  while (With([](State& state) { return cache::LetTimePass(state); })) {
  }
}

Result<FoundPath> Core::FindToPin(const AcquireRequest& request, const PublishLocation& location) {
  const uint64_t blocks = request.tokens.size() / block_tokens();
  if (blocks == 0) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("pin: {} tokens are not one block of {}",
                                                         request.tokens.size(), block_tokens()));
  }
  FoundPath path =
      FindBlocks(request.tokens.first(blocks * block_tokens()), location, /*explains=*/false);
  QUIRE_TRY(CheckToPin(classes_, blocks, path));
  return path;
}

Result<uint64_t> Core::Pin(const AcquireRequest& request, uint64_t ttl_us) {
  QUIRE_TRY(CheckRequest(request, "pin"));
  QUIRE_ASSIGN(const PublishLocation location, MakeLocation(request));
  // Two of which one has room would refuse each other half way.
  MutexLock one_at_a_time(pin_mutex_);
  LetTimePass();
  const uint64_t now_us = NowMicros();
  const uint64_t until_us =
      ttl_us == 0 || ttl_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + ttl_us;
  constexpr int kAttempts = 8;  // while others take what was found
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    QUIRE_ASSIGN(const FoundPath path, FindToPin(request, location));
    QUIRE_ASSIGN(const bool pinned, PinPath(location, path, until_us));
    if (pinned) return path.blocks.size();
  }
  return Fail(ErrorCode::kNotFound, "pin: the blocks go as fast as they are found");
}

// False: some of it went since it was found, and nothing is pinned.
Result<bool> Core::PinPath(const PublishLocation& location, const FoundPath& path,
                           uint64_t until_us) {
  // Nothing changes for a pin that has no room.
  uint64_t bytes = 0;
  bool all = true;
  ForPieces(path.blocks.size(), [&](size_t begin, size_t end) {
    if (all) With([&](State& state) { all = CountToPin(state, path, begin, end, bytes); });
  });
  if (!all) return false;
  // A pin that stands was there when the path was found, so its block is the one that was.
  const Result<bool> is_another = With([&](State& state) -> Result<bool> {
    QUIRE_TRY(CheckPinLimit(state, location, bytes));
    return state.pins.AddAnother(path.blocks.back(), location.tenant, until_us);
  });
  if (!is_another || *is_another) return is_another;

  struct UndoAtEnd {
    ~UndoAtEnd() {
      if (pinned.is_none()) return;
      core.With([&](State& state) { state.pins.Abandon(std::move(memory), pinned); });
    }
    Core& core;
    Pins::Memory memory = Pins::Reserve();
    BlockId pinned{};  // blocks from here to the root are, and no pin stands for them
  } undo{.core = *this};
  const auto pin_some = [&](size_t begin, size_t end) {
    if (!all) return;
    AtSyncPoint("pin: before blocks are pinned");
    With([&](State& state) { all = PinSome(state, location, path, begin, end, undo.pinned); });
  };
  ForPieces(path.blocks.size(), pin_some, kBlocksPerHold / 2);  // each is touched several times
  if (!all) return false;
  AtSyncPoint("pin: all blocks are pinned");
  all = With([&](State& state) {
    return EndPinning(state, location, undo.pinned, undo.memory, until_us);
  });
  if (all) undo.pinned = BlockId::None();
  return all;
}

Result<void> Core::Unpin(const AcquireRequest& request) {
  QUIRE_TRY(CheckRequest(request, "unpin"));
  QUIRE_ASSIGN(const PublishLocation location, MakeLocation(request));
  LetTimePass();
  QUIRE_ASSIGN(const FoundPath path, FindToPin(request, location));
  AtSyncPoint("unpin: its path was found");
  return With([&](State& state) { return cache::Unpin(state, location, path); });
}

std::optional<Lease> Core::HoldAgain(std::span<const SlotId> slots,
                                     std::span<const uint32_t> generations) {
  const auto is_as_it_was = [&](const State& state, size_t i) {
    // Of the same generation, so it was not freed meanwhile and is not now.
    if (state.slots.generation(slots[i]) != generations[i]) return false;
    const BlockId block = state.directory.InSlot(slots[i]);
    return block.is_none() || BlockStateOf(state, block) == BlockState::kGood;
  };
  Lease lease(this, {});
  lease.slots_.reserve(slots.size());
  // What is held for a moment would be the most recent: nothing changes for a view that is gone.
  bool all = true;
  if (slots.size() > kBlocksPerHold) {
    ForPieces(slots.size(), [&](size_t begin, size_t end) {
      With([&](const State& state) {
        for (size_t i = begin; all && i < end; ++i) all = is_as_it_was(state, i);
      });
    });
  }
  struct DropAtEnd {
    ~DropAtEnd() {
      if (!leased.is_none()) core.With([&](State& state) { DropLease(state, leased); });
    }
    Core& core;
    BlockId leased{};  // on the way to the first slot after those that a window passed
  } way{.core = *this};
  while (all && lease.slots_.size() < slots.size()) {
    With([&](State& state) {
      for (uint32_t left = kBlocksPerHold; left > 0; --left) {
        const size_t i = lease.slots_.size();
        if (i == slots.size()) return;
        all = is_as_it_was(state, i);
        if (!all || !LeaseTowards(state, state.directory.InSlot(slots[i]), way.leased)) return;
        HoldSlot(state, slots[i]);
        lease.slots_.push_back(slots[i]);
      }
    });
    AtSyncPoint("view: some slots are held");
  }
  if (!all) return std::nullopt;
  return lease;
}

}  // namespace quire::cache

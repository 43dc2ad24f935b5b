#include "cache/pinning.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/sync_point.h"
#include "cache/evict.h"
#include "cache/leases.h"
#include "cache/pin_verbs.h"
#include "cache/tenants.h"

namespace quire::cache {

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
  // Two of which one has room would refuse each other half way.
  MutexLock one_at_a_time(mutex_);
  LetTimePass(cache_);
  const uint64_t now_us = cache_.NowMicros();
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
Result<bool> Pinning::PinPath(const PublishLocation& location, const FoundPath& path,
                              uint64_t until_us) {
  // Nothing changes for a pin that has no room.
  uint64_t bytes = 0;
  bool all = true;
  LockedState::ForPieces(path.blocks.size(), [&](size_t begin, size_t end) {
    if (all) cache_.With([&](State& state) { all = CountToPin(state, path, begin, end, bytes); });
  });
  if (!all) return false;
  // A pin that stands was there when the path was found, so its block is the one that was.
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
    BlockId pinned{};  // blocks from here to the root are, and no pin stands for them
  } undo{.cache = cache_};
  const auto pin_some = [&](size_t begin, size_t end) {
    if (!all) return;
    AtSyncPoint("pin: before blocks are pinned");
    cache_.With(
        [&](State& state) { all = PinSome(state, location, path, begin, end, undo.pinned); });
  };
  LockedState::ForPieces(path.blocks.size(), pin_some,
                         kBlocksPerHold / 2);  // each is touched several times
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

#include "cache/pin_verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cache/evict.h"
#include "cache/hit_length.h"
#include "cache/leases.h"

namespace quire::cache {
namespace {

// The whole blocks of the tokens, if all of them can be used.
Result<std::vector<BlockId>> PathOfPin(State& state, const AcquireRequest& request,
                                       const PublishLocation& location) {
  const SlotClasses& classes = state.classes;
  const Directory& directory = state.directory;
  const uint64_t blocks = request.tokens.size() / classes.block_tokens();
  if (blocks == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("pin: {} tokens are not one block of {}", request.tokens.size(),
                            classes.block_tokens()));
  }
  std::vector<BlockId> path;
  directory.Find(location.root_key, BlockId::None(), request.tokens, path);
  uint64_t good = 0;
  while (good < path.size() && BlockStateOf(state, path[good]) == BlockState::kGood) ++good;
  // As a prompt that goes on after them would find them.
  const auto hit_of = [&](std::span<const WindowReach> reaches) {
    return HitBlocks(blocks * classes.block_tokens() + 1, classes.block_tokens(), good, reaches,
                     [&](uint32_t slot_class, uint64_t block) {
                       return !directory.at(path[block]).slots[slot_class].is_none();
                     });
  };
  const uint64_t sealed = hit_of(classes.reaches().first(classes.group_count()));
  if (sealed < blocks) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("pin: {} of {} blocks are in the cache", sealed, blocks));
  }
  const uint64_t hit = classes.residual_blocks() == 0 ? sealed : hit_of(classes.reaches());
  if (hit == blocks) return path;
  return Fail(ErrorCode::kNotFound,
              fmt::format("pin: {} blocks are in the cache, but prompts can go on after {} of them "
                          "only: there is no twin at their end (residual_tokens {})",
                          blocks, hit, classes.residual_tokens()));
}

// What a pin keeps of block i of a path that no pin keeps yet, a bit for each class; of open forms
// those that are read at its end.
uint8_t AddedClasses(const State& state, std::span<const BlockId> path, uint64_t i) {
  const uint64_t tokens = path.size() * state.classes.block_tokens();
  const BlockRecord& record = state.directory.at(path[i]);
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

Result<uint64_t> Pin(State& state, const AcquireRequest& request, const PublishLocation& location,
                     uint64_t ttl_us) {
  LetTimePass(state);
  QUIRE_ASSIGN(const std::vector<BlockId> path, PathOfPin(state, request, location));
  const TenantId account = state.account_of(location);
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < path.size(); ++i) bytes += BytesOf(state, AddedClasses(state, path, i));
  const uint64_t limit_bytes = state.accounts.PinLimit(account);
  const uint64_t pinned_bytes = state.accounts.pinned_bytes(account);
  if (bytes > limit_bytes - std::min(limit_bytes, pinned_bytes)) {
    return Fail(
        ErrorCode::kNoSpace,
        fmt::format("pin: {} bytes more, tenant \"{}\" has {} pinned of the {} that its "
                    "quota and the floors of others allow",
                    bytes, state.accounts.options(account).name, pinned_bytes, limit_bytes));
  }
  const uint64_t now_us = state.clock.NowMicros();
  const uint64_t until_us =
      ttl_us == 0 || ttl_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + ttl_us;
  if (!state.pins.Add(path.back(), location.tenant, until_us)) return path.size();
  for (uint64_t i = 0; i < path.size(); ++i) {
    const uint8_t classes = AddedClasses(state, path, i);
    const bool is_first = state.directory.at(path[i]).pins == 0;
    state.directory.AddPin(path[i], classes);
    state.accounts.CountPinned(account, is_first ? 1 : 0,
                               static_cast<int64_t>(BytesOf(state, classes)));
    const PerClass<SlotId> slots = state.directory.at(path[i]).slots;
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      if (((classes >> c) & 1U) != 0) HoldSlot(state, slots[c]);
    }
  }
  return path.size();
}

Result<void> Unpin(State& state, const AcquireRequest& request, const PublishLocation& location) {
  LetTimePass(state);
  QUIRE_ASSIGN(const std::vector<BlockId> path, PathOfPin(state, request, location));
  if (!state.pins.contains(path.back(), location.tenant)) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("unpin: tenant \"{}\" has no pin of just these {} blocks",
                            state.accounts.options(location.tenant).name, path.size()));
  }
  if (state.pins.Remove(path.back(), location.tenant)) ReleasePin(state, path.back());
  return {};
}

// Everything is counted before anything is let go of: with its last slot a block may leave the
// index, and take those before it along that have no bytes of their own.
void ReleasePin(State& state, BlockId last) {
  std::vector<SlotId> unpinned;  // from the last block to the root: parents stay the more recent
  for (BlockId block = last; !block.is_none(); block = state.directory.parent(block)) {
    if (!state.directory.DropPin(block)) continue;
    const BlockRecord& record = state.directory.at(block);
    state.accounts.CountPinned(record.account, -1,
                               -static_cast<int64_t>(BytesOf(state, record.pinned_classes)));
    for (uint32_t c = 0; c < state.classes.count(); ++c) {
      if (record.IsPinned(c)) unpinned.push_back(record.slots[c]);
    }
    state.directory.ClearPinnedClasses(block);
  }
  for (const SlotId slot : unpinned) ReleaseSlot(state, slot);
}

void EndPinsOfBadBlocks(State& state) {
  const auto is_bad = [&](BlockId last) { return !state.directory.at(last).is_good(); };
  for (const BlockId last : state.pins.TakeBad(is_bad)) ReleasePin(state, last);
}

}  // namespace quire::cache

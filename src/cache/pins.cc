// Pins: paths that the cache itself leases because a caller asked for it, whoever uses them.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cache/core.h"
#include "cache/hit_length.h"

namespace quire::cache {

Result<uint64_t> Core::Pin(const AcquireRequest& request, uint64_t ttl_us) {
  QUIRE_TRY(CheckRequest(request, "pin"));
  QUIRE_ASSIGN(const Place place, MakePlace(request));
  MutexLock lock(mutex_);
  LetTimePass();
  QUIRE_ASSIGN(const std::vector<BlockId> path, PathOfPin(request, place));
  Tenant& account = AccountOf(place);
  uint64_t bytes = 0;
  // What it keeps of block i that no pin keeps yet; of open forms those that are read at its end.
  const auto adds = [&](uint64_t i, uint32_t c) QUIRE_REQUIRES(mutex_) {
    const BlockRecord& record = blocks_.at(path[i]);
    const bool wanted =
        c < layout_.part_count() || i >= reaches_[c].first_needed(path.size() * block_tokens());
    return wanted && !record.slots[c].is_none() && !record.IsPinned(c);
  };
  for (uint64_t i = 0; i < path.size(); ++i) {
    for (uint32_t c = 0; c < class_count(); ++c) bytes += adds(i, c) ? charges_[c] : 0;
  }
  const uint64_t limit_bytes = PinLimit(account);
  if (bytes > limit_bytes - std::min(limit_bytes, account.pinned_bytes)) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("pin: {} bytes more, tenant \"{}\" has {} pinned of the {} that its "
                            "quota and the floors of others allow",
                            bytes, account.options.name, account.pinned_bytes, limit_bytes));
  }
  const uint64_t now_us = clock_.NowMicros();
  const uint64_t until_us =
      ttl_us == 0 || ttl_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + ttl_us;
  PinState& pin = pins_[{.last = path.back(), .tenant = place.tenant}];
  ++pin.count;
  pin.until_us = std::max(pin.until_us, until_us);
  next_pin_end_us_ = std::min(next_pin_end_us_, pin.until_us);
  if (pin.count > 1) return path.size();
  for (uint64_t i = 0; i < path.size(); ++i) {
    BlockRecord& record = blocks_.at(path[i]);
    if (record.pins++ == 0) ++account.pinned_blocks;
    for (uint32_t c = 0; c < class_count(); ++c) {
      if (!adds(i, c)) continue;
      record.pinned_parts |= static_cast<uint8_t>(1U << c);
      account.pinned_bytes += charges_[c];
      HoldSlot(record.slots[c]);
    }
  }
  return path.size();
}

Result<void> Core::Unpin(const AcquireRequest& request) {
  QUIRE_TRY(CheckRequest(request, "unpin"));
  QUIRE_ASSIGN(const Place place, MakePlace(request));
  MutexLock lock(mutex_);
  LetTimePass();
  QUIRE_ASSIGN(const std::vector<BlockId> path, PathOfPin(request, place));
  const auto pin = pins_.find({.last = path.back(), .tenant = place.tenant});
  if (pin == pins_.end()) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("unpin: tenant \"{}\" has no pin of just these {} blocks",
                            TenantOf(place.tenant).options.name, path.size()));
  }
  if (--pin->second.count > 0) return {};
  pins_.erase(pin);
  ReleasePin(path.back());
  return {};
}

// The whole blocks of the tokens, if all of them can be used.
Result<std::vector<BlockId>> Core::PathOfPin(const AcquireRequest& request, const Place& place) {
  const uint64_t blocks = request.tokens.size() / block_tokens();
  if (blocks == 0) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("pin: {} tokens are not one block of {}",
                                                         request.tokens.size(), block_tokens()));
  }
  std::vector<BlockId> path;
  if (const auto root = index_.FindRoot(place.root_key)) index_.Find(*root, request.tokens, path);
  uint64_t good = 0;
  while (good < path.size() && blocks_.at(path[good]).standing == Standing::kGood) ++good;
  BlockTable* const table = &blocks_;  // HitBlocks calls back while the lock is held
  // As a prompt that goes on after them would find them.
  const auto hit_of = [&](std::span<const Reach> reaches) {
    return HitBlocks(blocks * block_tokens() + 1, block_tokens(), good, reaches,
                     [&](uint32_t slot_class, uint64_t block) {
                       return !table->at(path[block]).slots[slot_class].is_none();
                     });
  };
  const uint64_t sealed = hit_of(reaches().first(layout_.part_count()));
  if (sealed < blocks) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("pin: {} of {} blocks are in the cache", sealed, blocks));
  }
  const uint64_t hit = residual_blocks() == 0 ? sealed : hit_of(reaches());
  if (hit == blocks) return path;
  return Fail(ErrorCode::kNotFound,
              fmt::format("pin: {} blocks are in the cache, but prompts can go on after {} of them "
                          "only: there is no twin at their end (residual_tokens {})",
                          blocks, hit, options_.profile.residual_tokens));
}

// What an account may pin leaves the others their floors.
uint64_t Core::PinLimit(const Tenant& account) const {
  uint64_t limit_bytes = ledger_.limit_bytes();
  for (const auto& other : tenants_) {
    if (other.get() != &account) limit_bytes -= other->options.floor_bytes;
  }
  return std::min(limit_bytes, account.account.quota_bytes());
}

// Everything is counted before anything is let go of: with its last slot a block may leave the
// index, and take those before it along that have no bytes of their own.
void Core::ReleasePin(BlockId last) {
  std::vector<SlotId> unpinned;  // from the last block to the root: parents stay the more recent
  for (BlockId block = last; !block.is_none(); block = index_.parent(block)) {
    BlockRecord& record = blocks_.at(block);
    if (--record.pins > 0) continue;
    Tenant& account = TenantOf(record.account);
    --account.pinned_blocks;
    for (uint32_t c = 0; c < class_count(); ++c) {
      if (!record.IsPinned(c)) continue;
      account.pinned_bytes -= charges_[c];
      unpinned.push_back(record.slots[c]);
    }
    record.pinned_parts = 0;
  }
  for (const SlotId slot : unpinned) ReleaseSlot(slot);
}

// What is never found again need not be kept.
void Core::EndPinsOfBadBlocks() {
  std::vector<BlockId> ended;
  for (auto pin = pins_.begin(); pin != pins_.end();) {
    const bool is_good = blocks_.at(pin->first.last).standing == Standing::kGood;
    if (!is_good) ended.push_back(pin->first.last);
    pin = is_good ? std::next(pin) : pins_.erase(pin);
  }
  for (const BlockId last : ended) ReleasePin(last);
}

// Ends the pins that are over, and tells policies that go by time how late it is.
void Core::LetTimePass() {
  if (!hears_time_ && next_pin_end_us_ == UINT64_MAX) return;
  const uint64_t now_us = clock_.NowMicros();
  for (const auto& tenant : tenants_) tenant->lists.whole->Advance(now_us / 1000);
  if (now_us < next_pin_end_us_) return;
  std::vector<BlockId> ended;
  next_pin_end_us_ = UINT64_MAX;
  for (auto pin = pins_.begin(); pin != pins_.end();) {
    const bool is_over = pin->second.until_us <= now_us;
    if (is_over) {
      ended.push_back(pin->first.last);
    } else {
      next_pin_end_us_ = std::min(next_pin_end_us_, pin->second.until_us);
    }
    pin = is_over ? pins_.erase(pin) : std::next(pin);
  }
  for (const BlockId last : ended) ReleasePin(last);
}

}  // namespace quire::cache

#include "sim/cache_guests.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/test_util.h"

namespace quire::sim {
namespace {

constexpr size_t kHeldMax = 2;  // of each kind

// Whole blocks of a view: rows behind the last token may still be written.
std::vector<std::byte> BytesOf(const BlockListView& view) {
  std::vector<std::byte> bytes;
  const uint64_t whole = view.tokens() / view.layout().block_tokens;
  for (uint64_t i = 0; i < whole; ++i) {
    const std::byte* const slot = view.slots()[i];
    if (slot == nullptr) continue;  // its window has passed it
    for (uint32_t head = 0; head < view.layout().heads; ++head) {
      const std::byte* const plane =
          slot + view.layout().offset_bytes + head * view.layout().head_stride_bytes;
      const uint64_t numbers = uint64_t{view.layout().block_tokens} * view.layout().dim;
      bytes.insert(bytes.end(), plane, plane + numbers * 2);  // f16
    }
  }
  return bytes;
}

}  // namespace

SequenceOptions CacheGuests::SomeOptions(uint64_t tokens) {
  constexpr std::array kOnFull = {OnFull::kHalt,   OnFull::kHalt,    OnFull::kHalt,
                                  OnFull::kReject, OnFull::kNoEvict, OnFull::kFewer};
  return {.reserve_tokens = prng_.NextChance(3) ? tokens + 40 : 0,
          .step_tokens = 1 + prng_.NextBelow(64),
          .on_full = kOnFull[prng_.NextBelow(kOnFull.size())],
          .publish = !prng_.NextChance(6)};
}

std::string CacheGuests::Act(Side& side, const std::array<Identity, 2>& identities) {
  switch (prng_.NextBelow(10)) {
    case 0:
    case 1: Fork(side); break;
    case 2: Show(side); break;
    case 3: return Look();
    case 4: Retain(side); break;
    case 5: Select(side); break;
    case 6:
    case 7: Pin(side, identities); break;
    case 8: OpenContiguous(side, identities); break;
    default: side.cache->Trim();
  }
  return {};
}

Live* CacheGuests::AnyLive(Side& side) {
  return side.lives.empty() ? nullptr : &side.lives[prng_.NextBelow(side.lives.size())];
}

void CacheGuests::Fork(Side& side) {
  const Live* const live = AnyLive(side);
  if (live == nullptr || side.lives.size() > 8) return;
  auto forked = live->sequence->Fork();
  if (!forked) return;
  side.lives.push_back({.origin = live->origin,
                        .tokens = live->tokens,
                        .computed = live->computed,
                        .stale = live->stale,
                        .sequence = *std::move(forked)});
}

void CacheGuests::Show(Side& side) {
  const Live* const live = AnyLive(side);
  if (live == nullptr || live->tokens.empty() || shown_.size() >= kHeldMax) return;
  auto view = live->sequence->View(0, StreamRole::kValue);
  if (!view) return;  // the codec encodes
  std::vector<std::byte> bytes = BytesOf(*view);
  unpinned_.push_back({.view = view->Unleased(), .bytes = bytes});
  if (unpinned_.size() > kHeldMax) unpinned_.erase(unpinned_.begin());
  shown_.push_back({.view = *std::move(view), .bytes = std::move(bytes)});
}

std::string CacheGuests::Look() {
  for (const Unpinned& unpinned : unpinned_) {
    const auto view = unpinned.view.Pin();
    if (view && BytesOf(*view) != unpinned.bytes) return "a view that came back shows other bytes";
  }
  if (shown_.empty()) return {};
  const Shown first = std::move(shown_.front());
  shown_.erase(shown_.begin());
  return BytesOf(first.view) == first.bytes ? "" : "bytes changed below a view";
}

void CacheGuests::Retain(Side& side) {
  const Live* const live = AnyLive(side);
  if (live == nullptr) return;
  const uint64_t begin = prng_.NextBelow(live->tokens.size() + 1);
  // Policies that go by no priorities refuse it.
  static_cast<void>(live->sequence->Retain({.begin_token = begin,
                                            .end_token = begin + prng_.NextBelow(100),
                                            .priority = static_cast<uint8_t>(prng_.NextBelow(101)),
                                            .ttl_us = prng_.NextBelow(3) * 1000}));
}

void CacheGuests::Select(Side& side) {
  const Live* const live = AnyLive(side);
  if (live == nullptr || held_.size() >= kHeldMax) return;
  std::vector<uint64_t> kept;
  const uint64_t whole = live->tokens.size() / side.cache->options().profile.block_tokens;
  for (uint64_t block = 0; block < whole; ++block) {
    if (prng_.NextChance(2)) kept.push_back(block);
  }
  auto selected = live->sequence->Select(kept);
  if (selected) held_.push_back(*std::move(selected));
}

// Pins a path, or takes a pin back.
void CacheGuests::Pin(Side& side, const std::array<Identity, 2>& identities) {
  const auto request_for = [&](const Pinned& pin) {
    return AcquireRequest{.tenant = side.tenants[pin.origin.party],
                          .identity = &identities[pin.origin.variant],
                          .tokens = pin.tokens};
  };
  if (pins_.size() >= kHeldMax) {
    // The pin may have ended by its time, or with an erasure.
    static_cast<void>(side.cache->Unpin(request_for(pins_.front())));
    pins_.erase(pins_.begin());
    return;
  }
  const Live* const live = AnyLive(side);
  if (live == nullptr) return;
  Pinned pin = {.origin = live->origin, .tokens = live->tokens};
  if (side.cache->Pin(request_for(pin), prng_.NextBelow(3) * 20'000)) {
    pins_.push_back(std::move(pin));
  }
}

void CacheGuests::OpenContiguous(Side& side, const std::array<Identity, 2>& identities) {
  if (!held_.empty() && prng_.NextChance(2)) {
    held_.erase(held_.begin());
    return;
  }
  if (held_.size() >= kHeldMax) return;
  const std::vector<TokenId> tokens(1 + prng_.NextBelow(80));
  auto plan =
      side.cache->Acquire({.identity = identities.data(), .tokens = tokens, .reuse = false});
  if (!plan) return;
  auto opened = side.cache->Open(*std::move(plan), {.contiguous = true});
  if (opened) held_.push_back(*std::move(opened));
}

void CacheGuests::End(Side& side, const std::array<Identity, 2>& identities) {
  held_.clear();
  shown_.clear();
  unpinned_.clear();
  for (const Pinned& pin : std::exchange(pins_, {})) {
    static_cast<void>(side.cache->Unpin({.tenant = side.tenants[pin.origin.party],
                                         .identity = &identities[pin.origin.variant],
                                         .tokens = pin.tokens}));
  }
}

}  // namespace quire::sim

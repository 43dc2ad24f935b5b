// The policies that a cache can be made with, by name.
#ifndef QUIRE_EVICT_POLICIES_H_
#define QUIRE_EVICT_POLICIES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "evict/policy.h"

namespace quire::evict {

std::span<const std::string_view> PolicyNames();

/// What each slot of a cache pays for a policy's history, if it has one: little beside the slot.
constexpr uint64_t HistoryBytesPerSlot(uint64_t slot_bytes) {
  return std::min<uint64_t>(4096, slot_bytes / 64);
}

/// With a precision ladder, of what could be evicted: whether its twins take so much of it, more
/// than a quarter, that the oldest of them goes before any whole block.
constexpr bool TwinsGoFirst(uint64_t twin_bytes, uint64_t evictable_bytes) {
  return twin_bytes > evictable_bytes / 4;
}

/// A new policy; null for a name that is not in PolicyNames().
std::unique_ptr<Policy> MakePolicy(std::string_view name);

}  // namespace quire::evict

#endif  // QUIRE_EVICT_POLICIES_H_

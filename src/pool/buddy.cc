#include "pool/buddy.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire::pool {

uint64_t Buddy::Bytes(uint32_t slots_max) {
  uint64_t bytes = 0;
  for (uint32_t order = 0; order < kOrders; ++order) bytes += SlotSet::Bytes(slots_max >> order);
  return bytes;
}

Buddy::Buddy(std::byte* memory, uint32_t slots_max) {
  for (uint32_t order = 0; order < kOrders; ++order) {
    const uint32_t blocks = slots_max >> order;
    free_[order] = SlotSet(memory, blocks, SlotSet::Start::kEmpty);
    memory += SlotSet::Bytes(blocks);
  }
  PutRange(0, slots_max);
}

void Buddy::Take(std::span<SlotId> out) {
  for (SlotId& slot : out) {
    const std::optional<SlotRun> one = TakeRun(1);
    QUIRE_DCHECK(one.has_value());
    slot = one->first;
  }
}

std::optional<SlotRun> Buddy::TakeRun(uint32_t count) {
  const auto order_min = static_cast<uint32_t>(std::bit_width(count - 1));
  const uint64_t large_enough = orders_ >> order_min;
  if (large_enough == 0) return std::nullopt;
  const uint32_t order = order_min + static_cast<uint32_t>(std::countr_zero(large_enough));
  const uint32_t number = free_[order].First(0);
  TakeBlock(order, number);
  const uint32_t first = number << order;
  PutRange(uint64_t{first} + count, uint64_t{first} + (uint64_t{1} << order));
  return SlotRun{.first = SlotId(first), .count = count};
}

void Buddy::TakeAt(SlotRun run) {
  for (uint64_t slot = run.first.number(); slot < End(run);) {
    const uint32_t order = OrderOfFreeBlockAround(static_cast<uint32_t>(slot));
    const auto number = static_cast<uint32_t>(slot >> order);
    const uint64_t begin = uint64_t{number} << order;
    const uint64_t end = begin + (uint64_t{1} << order);
    TakeBlock(order, number);
    // What the block has beside the run stays free.
    PutRange(begin, slot);
    PutRange(std::min(End(run), end), end);
    slot = end;
  }
}

uint32_t Buddy::OrderOfFreeBlockAround(uint32_t slot) const {
  uint32_t order = 0;
  while (order < kOrders && !free_[order].Contains(slot >> order)) ++order;
  QUIRE_CHECK_MSG(order < kOrders, "the slot is in no free block");
  return order;
}

void Buddy::TakeBlock(uint32_t order, uint32_t number) {
  free_[order].Erase(number);
  if (free_[order].empty()) orders_ &= ~(uint64_t{1} << order);
}

// Merges with the other half as long as that is free. Where it lies beyond the last slot it is no
// block, so never free.
void Buddy::PutBlock(uint32_t order, uint32_t number) {
  while (free_[order].Contains(number ^ 1)) {
    TakeBlock(order, number ^ 1);
    number >>= 1;
    ++order;
  }
  free_[order].Insert(number);
  orders_ |= uint64_t{1} << order;
}

// Frees slots as the largest aligned blocks they are made of.
void Buddy::PutRange(uint64_t begin, uint64_t end) {
  while (begin < end) {
    const auto aligned = static_cast<uint32_t>(std::countr_zero(begin));  // 64 for 0
    const auto fits = static_cast<uint32_t>(std::bit_width(end - begin)) - 1;
    const uint32_t order = std::min(aligned, fits);
    PutBlock(order, static_cast<uint32_t>(begin >> order));
    begin += uint64_t{1} << order;
  }
}

}  // namespace quire::pool

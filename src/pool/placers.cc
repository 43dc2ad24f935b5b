#include "pool/placers.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire::pool {
namespace {

// Of two runs in the tree the one with the higher priority is above. Mixes every bit into every
// other and maps no two slots to one value.
uint32_t Priority(uint32_t slot) {
  slot = (slot ^ (slot >> 16)) * 0x85ebca6b;
  slot = (slot ^ (slot >> 13)) * 0xc2b2ae35;
  return slot ^ (slot >> 16);
}

}  // namespace

BestFit::BestFit(std::byte* memory, uint32_t slots_max)
    : slots_max_(slots_max),
      lengths_(reinterpret_cast<uint32_t*>(memory)),
      left_(lengths_ + slots_max),
      right_(left_ + slots_max) {
  Link(0, slots_max);
}

void BestFit::Take(std::span<SlotId> out) {
  while (!out.empty()) {
    // A run that loses its first slot stays the shortest, so it goes on losing them.
    const uint32_t first = FirstOfAtLeast(1);
    QUIRE_DCHECK(first != kNone);
    const auto count = static_cast<uint32_t>(std::min<size_t>(out.size(), lengths_[first]));
    TakeFront(first, count);
    for (uint32_t i = 0; i < count; ++i) out[i] = SlotId(first + i);
    out = out.subspan(count);
  }
}

void BestFit::Put(SlotRun run) {
  uint32_t first = run.first.number();
  uint32_t length = run.count;
  const uint32_t end = first + length;
  if (end < slots_max_ && lengths_[end] != 0) length += Unlink(end);
  if (first > 0 && lengths_[first - 1] != 0) {
    first -= lengths_[first - 1];
    length += Unlink(first);
  }
  Link(first, length);
}

std::optional<SlotRun> BestFit::TakeRun(uint32_t count) {
  const uint32_t first = FirstOfAtLeast(count);
  if (first == kNone) return std::nullopt;
  TakeFront(first, count);
  return SlotRun{.first = SlotId(first), .count = count};
}

// The slot before is taken, so a free run begins here.
void BestFit::TakeAt(SlotRun run) { TakeFront(run.first.number(), run.count); }

void BestFit::TakeFront(uint32_t first, uint32_t count) {
  const uint32_t length = Unlink(first);
  QUIRE_DCHECK(length >= count);
  if (length > count) Link(first + count, length - count);
}

uint32_t BestFit::FirstOfAtLeast(uint32_t count) const {
  uint32_t found = kNone;
  for (uint32_t run = root_; run != kNone;) {
    const bool enough = lengths_[run] >= count;
    if (enough) found = run;
    run = enough ? left_[run] : right_[run];
  }
  return found;
}

// Makes slots that are in no run a run. Goes down to the place of its priority, and splits the
// subtree there around it.
void BestFit::Link(uint32_t first, uint32_t length) {
  lengths_[first] = length;
  lengths_[first + length - 1] = length;
  uint32_t* place = &root_;
  while (*place != kNone && Priority(*place) > Priority(first)) {
    place = Before(*place, first) ? &right_[*place] : &left_[*place];
  }
  uint32_t* before = &left_[first];
  uint32_t* behind = &right_[first];
  for (uint32_t run = *place; run != kNone;) {
    if (Before(run, first)) {
      *before = run;
      before = &right_[run];
      run = right_[run];
    } else {
      *behind = run;
      behind = &left_[run];
      run = left_[run];
    }
  }
  *before = kNone;
  *behind = kNone;
  *place = first;
}

// Ends a run, whose slots are in none then, and returns its length. What hung below it is merged.
uint32_t BestFit::Unlink(uint32_t first) {
  uint32_t* place = &root_;
  while (*place != first) {
    QUIRE_DCHECK(*place != kNone);
    place = Before(*place, first) ? &right_[*place] : &left_[*place];
  }
  uint32_t before = left_[first];
  uint32_t behind = right_[first];
  while (before != kNone && behind != kNone) {
    if (Priority(before) > Priority(behind)) {
      *place = before;
      place = &right_[before];
      before = right_[before];
    } else {
      *place = behind;
      place = &left_[behind];
      behind = left_[behind];
    }
  }
  *place = before != kNone ? before : behind;
  const uint32_t length = lengths_[first];
  lengths_[first] = 0;
  lengths_[first + length - 1] = 0;
  return length;
}

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
    // The slot before is taken, or of the block before: so the block begins here.
    QUIRE_DCHECK(uint64_t{number} << order == slot);
    const uint64_t end = slot + (uint64_t{1} << order);
    TakeBlock(order, number);
    // What the block has behind the run stays free.
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

uint64_t PlacerBytes(Placement placement, uint32_t slots_max) {
  switch (placement) {
    case Placement::kFreeList: return FreeList::Bytes(slots_max);
    case Placement::kFirstFit: return FirstFit::Bytes(slots_max);
    case Placement::kBestFit: return BestFit::Bytes(slots_max);
    case Placement::kBuddy: return Buddy::Bytes(slots_max);
  }
  QUIRE_CHECK_MSG(false, "no such placement");
  return 0;
}

std::unique_ptr<Placer> MakePlacer(Placement placement, std::byte* memory, uint32_t slots_max) {
  switch (placement) {
    case Placement::kFreeList: return std::make_unique<FreeList>(memory, slots_max);
    case Placement::kFirstFit: return std::make_unique<FirstFit>(memory, slots_max);
    case Placement::kBestFit: return std::make_unique<BestFit>(memory, slots_max);
    case Placement::kBuddy: return std::make_unique<Buddy>(memory, slots_max);
  }
  QUIRE_CHECK_MSG(false, "no such placement");
  return nullptr;
}

}  // namespace quire::pool

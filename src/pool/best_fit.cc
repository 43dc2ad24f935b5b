#include "pool/best_fit.h"

#include <algorithm>

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

// Makes slots that are in no run a run. Goes down to where its priority puts it, and splits what is
// there around it.
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

}  // namespace quire::pool

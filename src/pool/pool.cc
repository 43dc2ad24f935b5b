#include "pool/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/bits.h"

namespace quire::pool {
namespace {

// Longest hold of the lock in Trim: pages dropped, and slots looked at, per hold.
constexpr uint64_t kTrimBytesPerHold = 16ull << 20;
constexpr uint32_t kTrimSlotsPerHold = 1 << 16;
constexpr uint32_t kTrimSlotsPerSettle = 4096;  // slots that one call of `settle` waits for

uint64_t SlotStride(const PoolOptions& options) {
  return options.pieces == 1 ? RoundUp(options.slot_bytes, Pool::kSlotAlignment)
                             : options.slot_bytes / options.pieces;
}

uint64_t PieceStride(const PoolOptions& options) {
  return RoundUp(SlotStride(options) * options.slots_max, Pool::kSlotAlignment);
}

// Nothing when 64 bits cannot address it. Every rounding adds less than a page to a piece.
std::optional<uint64_t> ArenaBytes(const PoolOptions& options) {
  const std::optional<uint64_t> padded = CheckedAdd(options.slot_bytes, Pool::kSlotAlignment);
  const std::optional<uint64_t> slots =
      padded ? CheckedMul(*padded, options.slots_max) : std::nullopt;
  const uint64_t rounding = uint64_t{options.pieces} * Pool::kSlotAlignment;
  if (!slots || !CheckedAdd(*slots, rounding)) return std::nullopt;
  return PieceStride(options) * options.pieces;
}

// Where the placer's metadata begins, behind the slots'.
constexpr uint64_t PlacerOffset(uint64_t slots_bytes) { return RoundUp(slots_bytes, 8); }

}  // namespace

static_assert(Pool::MetadataBytesPerSlot(Placement::kFreeList) == Pool::kMetadataBytesPerSlot);

Result<std::unique_ptr<Pool>> Pool::Create(PoolOptions options, DeviceMemory& memory) {
  if (options.slots == 0) options.slots = options.slots_max;
  if (options.slot_bytes == 0 || options.slots_max == 0 ||
      options.slots_max == SlotId::None().number() || options.slots > options.slots_max ||
      options.pieces == 0 || options.slot_bytes % options.pieces != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("pool {}: {} slots of {} bytes in {} pieces", options.name,
                            options.slots_max, options.slot_bytes, options.pieces));
  }
  const std::optional<uint64_t> arena_bytes = ArenaBytes(options);
  if (!arena_bytes) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("pool {}: {} slots of {} bytes are more than 64 bits can address",
                            options.name, options.slots_max, options.slot_bytes));
  }
  const auto with_name = [&options](Error error) {
    error.message = fmt::format("pool {}: {}", options.name, error.message);
    return std::unexpected(std::move(error));
  };
  auto arena = Reservation::Create(memory, *arena_bytes);
  if (!arena) return with_name(std::move(arena).error());
  auto own_memory = memory.host_accessible() ? nullptr : MakeHostMemory(/*huge_pages=*/false);
  auto metadata = Reservation::CreateCommitted(
      own_memory ? *own_memory : memory, PlacerOffset(sizeof(Slot) * options.slots_max) +
                                             PlacerBytes(options.placement, options.slots_max));
  if (!metadata) return with_name(std::move(metadata).error());
  std::unique_ptr<Pool> pool(
      new Pool(std::move(options), std::move(own_memory), *std::move(arena), *std::move(metadata)));
  QUIRE_TRY(pool->CommitSlots(pool->options_.slots));
  pool->SetSlots(pool->options_.slots);
  return pool;
}

Pool::Pool(PoolOptions options, std::unique_ptr<DeviceMemory> own_memory, Reservation arena,
           Reservation metadata)
    : options_(std::move(options)),
      slot_stride_bytes_(SlotStride(options_)),
      piece_stride_bytes_(PieceStride(options_)),
      own_memory_(std::move(own_memory)),
      arena_(std::move(arena)),
      metadata_(std::move(metadata)),
      slots_(reinterpret_cast<Slot*>(metadata_.base())),
      placer_(MakePlacer(options_.placement,
                         metadata_.base() + PlacerOffset(sizeof(Slot) * options_.slots_max),
                         options_.slots_max)),
      slots_now_(options_.slots_max),
      free_count_(options_.slots_max) {}

bool Pool::Allocate(std::span<SlotId> out) {
  MutexLock lock(mutex_);
  if (out.size() > free_count_) return false;
  placer_->Take(out);
  for (const SlotId id : out) MarkTaken(id);
  CountTaken(static_cast<uint32_t>(out.size()));
  return true;
}

void Pool::MarkTaken(SlotId id) {
  Slot& slot = slots_[id.number()];
  slot.references = 1;
  slot.may_be_resident = 1;
  used_end_ = std::max(used_end_, id.number() + 1);
}

void Pool::CountTaken(uint32_t slots) {
  free_count_ -= slots;
  used_ += slots;
  used_peak_ = std::max(used_peak_, used_);
}

// Slots without holders. Those beyond the end are not for handing out.
void Pool::MarkFree(SlotRun run) {
  used_ -= run.count;
  const uint32_t first = run.first.number();
  const uint32_t below = first < slots_now_ ? std::min(run.count, slots_now_ - first) : 0;
  if (below == 0) return;
  placer_->Put({.first = run.first, .count = below});
  free_count_ += below;
}

void Pool::Retain(SlotId slot) {
  MutexLock lock(mutex_);
  uint32_t& references = Used(slot).references;
  QUIRE_CHECK_MSG(references < std::numeric_limits<uint32_t>::max(),
                  DescribeBug(slot, "has too many references"));
  ++references;
}

bool Pool::Release(SlotId id) {
  MutexLock lock(mutex_);
  Slot& slot = Used(id);
  if (--slot.references > 0) return false;
  ++slot.generation;
  MarkFree({.first = id, .count = 1});
  return true;
}

uint32_t Pool::references(SlotId slot) const {
  CheckInRange(slot);
  MutexLock lock(mutex_);
  return slots_[slot.number()].references;
}

uint32_t Pool::generation(SlotId slot) const {
  CheckInRange(slot);
  MutexLock lock(mutex_);
  return slots_[slot.number()].generation;
}

void Pool::Renew(SlotId slot) {
  MutexLock lock(mutex_);
  ++Used(slot).generation;
}

uint32_t Pool::free_count() const {
  MutexLock lock(mutex_);
  return free_count_;
}

Pool::Slot& Pool::Used(SlotId slot) {
  CheckInRange(slot);
  Slot& found = slots_[slot.number()];
  QUIRE_CHECK_MSG(found.references > 0, DescribeBug(slot, "is free"));
  return found;
}

std::string Pool::DescribeBug(SlotId slot, const char* what) const {
  return fmt::format("pool {}: slot {} of {} {}", options_.name, slot.number(), options_.slots_max,
                     what);
}

uint64_t Pool::Trim(const std::function<void()>& settle) {
  uint64_t trimmed_bytes = 0;
  std::array<Freed, kTrimSlotsPerSettle> memory;  // a caller that trims may have none to spare
  uint32_t cursor = 0;
  while (const auto freed = FindFreed(cursor, memory)) {
    if (freed->empty()) continue;
    if (settle) settle();
    for (size_t first = 0; first < freed->size();) {
      trimmed_bytes += TrimSome(freed->subspan(first), first);
    }
  }
  return trimmed_bytes;
}

// Slots that may be trimmed, from `cursor` on: as many as there is memory for, of as many as one
// hold of the lock allows. Nothing: the end.
std::optional<std::span<const Pool::Freed>> Pool::FindFreed(uint32_t& cursor,
                                                            std::span<Freed> memory) const {
  MutexLock lock(mutex_);
  const uint32_t end = std::min(used_end_, slots_now_);
  if (cursor >= end) return std::nullopt;
  const uint32_t search_end = cursor + std::min(kTrimSlotsPerHold, end - cursor);
  size_t count = 0;
  for (; cursor < search_end && count < memory.size(); ++cursor) {
    const Slot& slot = slots_[cursor];
    if (slot.references > 0 || slot.may_be_resident == 0) continue;
    memory[count++] = {.slot = cursor, .generation = slot.generation};
  }
  return memory.first(count);
}

// Gives back the first of these, and its neighbours among them as far as one hold of the lock
// allows. `next` moves over the examined slots. Slots handed out since stay as they are.
uint64_t Pool::TrimSome(std::span<const Freed> freed, size_t& next) {
  MutexLock lock(mutex_);
  const auto can_trim = [&](const Freed& was) QUIRE_REQUIRES(mutex_) {
    if (was.slot >= slots_now_) return false;
    const Slot& slot = slots_[was.slot];
    return slot.references == 0 && slot.may_be_resident != 0 && slot.generation == was.generation;
  };
  const uint64_t slot_pages_bytes = slot_stride_bytes_ * options_.pieces;
  const uint64_t run_max = std::max<uint64_t>(1, kTrimBytesPerHold / slot_pages_bytes);
  uint32_t count = 0;
  while (count < freed.size() && count < run_max && freed[count].slot == freed[0].slot + count &&
         can_trim(freed[count])) {
    slots_[freed[count++].slot].may_be_resident = 0;
  }
  next += std::max(count, 1u);
  if (count == 0) return 0;
  // Where pieces share pages, a page goes with the last of its slots.
  const uint32_t end = std::min(used_end_, slots_now_);
  uint32_t begin = freed[0].slot;
  uint32_t free_end = begin + count;
  const auto is_clean = [&](uint32_t slot) QUIRE_REQUIRES(mutex_) {
    return slots_[slot].references == 0 && slots_[slot].may_be_resident == 0;
  };
  for (uint64_t more = options_.pieces > 1 ? kSlotAlignment / slot_stride_bytes_ + 1 : 0; more > 0;
       --more) {
    if (begin > 0 && is_clean(begin - 1)) --begin;
    if (free_end < end && is_clean(free_end)) ++free_end;
  }
  for (uint32_t piece = 0; piece < options_.pieces; ++piece) {
    arena_.memory().Discard(data(SlotId(begin)) + piece * piece_stride_bytes_,
                            (free_end - begin) * slot_stride_bytes_);
  }
  return count * slot_pages_bytes;
}

SlotClassStats Pool::stats() const {
  MutexLock lock(mutex_);
  return {.slot_bytes = options_.slot_bytes,
          .slots_max = slots_now_,
          .slots_used = used_,
          .slots_used_peak = used_peak_};
}

}  // namespace quire::pool

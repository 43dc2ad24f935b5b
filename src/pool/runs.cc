// Consecutive slots: taken together, counted one by one.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "pool/pool.h"

namespace quire::pool {

Result<SlotRun> Pool::AllocateRun(uint32_t count) {
  MutexLock lock(mutex_);
  RunPlacer* const runs = placer_->runs();
  if (runs == nullptr) return NoRuns();
  if (count == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("pool {}: a run of no slots", options_.name));
  }
  const std::optional<SlotRun> run = count <= free_count_ ? runs->TakeRun(count) : std::nullopt;
  if (!run) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("pool {}: {} has no run of {} slots; {} of {} are free", options_.name,
                            PlacementName(options_.placement), count, free_count_, slots_now_));
  }
  for (uint32_t i = 0; i < count; ++i) MarkTaken(run->slot(i));
  CountTaken(count);
  return *run;
}

Result<void> Pool::GrowRun(SlotRun& run, uint32_t count) {
  MutexLock lock(mutex_);
  RunPlacer* const runs = placer_->runs();
  if (runs == nullptr) return NoRuns();
  CheckRun(run);
  if (count < run.count) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("pool {}: a run of {} slots cannot grow to {}", options_.name,
                            run.count, count));
  }
  if (count == run.count) return {};
  const auto does_not_fit = [&](const std::string& why) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("pool {}: the run of {} slots from {} on cannot grow to {}: {}",
                            options_.name, run.count, run.first.number(), count, why));
  };
  if (uint64_t{run.first.number()} + count > slots_now_) {
    return does_not_fit(fmt::format("there are {} slots", slots_now_));
  }
  for (uint32_t i = run.count; i < count; ++i) {
    if (slots_[run.slot(i).number()].references > 0) {
      return does_not_fit(fmt::format("slot {} is in use", run.slot(i).number()));
    }
  }
  const SlotRun more = {.first = run.slot(run.count), .count = count - run.count};
  runs->TakeAt(more);
  for (uint32_t i = 0; i < more.count; ++i) MarkTaken(more.slot(i));
  CountTaken(more.count);
  run.count = count;
  return {};
}

uint32_t Pool::ShrinkRun(SlotRun& run, uint32_t count) {
  QUIRE_CHECK(count <= run.count);
  const uint32_t freed = ReleaseRun({.first = run.slot(count), .count = run.count - count});
  run.count = count;
  return freed;
}

uint32_t Pool::ReleaseRun(SlotRun run) {
  if (run.count == 0) return 0;
  MutexLock lock(mutex_);
  CheckRun(run);
  uint32_t freed = 0;
  // Neighbours that become free are given back together.
  SlotRun together = {.first = run.first, .count = 0};
  for (uint32_t i = 0; i < run.count; ++i) {
    Slot& slot = Used(run.slot(i));
    if (--slot.references == 0) {
      ++slot.generation;
      ++together.count;
      continue;
    }
    if (together.count > 0) MarkFree(together);
    freed += together.count;
    together = {.first = run.slot(i + 1), .count = 0};
  }
  if (together.count > 0) MarkFree(together);
  return freed + together.count;
}

// All its slots exist, and the last one, which growing goes on from, is used.
void Pool::CheckRun(SlotRun run) {
  QUIRE_CHECK_MSG(run.count > 0 && run.first.number() < options_.slots_max &&
                      run.count <= options_.slots_max - run.first.number(),
                  fmt::format("pool {}: {} slots from {} on are no run of {}", options_.name,
                              run.count, run.first.number(), options_.slots_max));
  Used(run.slot(run.count - 1));
}

std::unexpected<Error> Pool::NoRuns() const {
  return Fail(ErrorCode::kUnsupported,
              fmt::format("pool {}: placement {} has no runs", options_.name,
                          PlacementName(options_.placement)));
}

FreeRuns Pool::free_runs() const {
  MutexLock lock(mutex_);
  FreeRuns found = {.free_slots = free_count_};
  uint64_t length = 0;
  const uint32_t used_end = std::min(used_end_, slots_now_);
  for (uint32_t slot = 0; slot < used_end; ++slot) {
    length = slots_[slot].references == 0 ? length + 1 : 0;
    if (length == 1) ++found.runs;
    found.largest = std::max(found.largest, length);
  }
  const uint64_t never_used = slots_now_ - used_end;
  if (length == 0 && never_used > 0) ++found.runs;
  found.largest = std::max(found.largest, length + never_used);
  return found;
}

}  // namespace quire::pool

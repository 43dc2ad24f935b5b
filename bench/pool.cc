// The pool's speed against the least any locked free list costs.
#include "pool/pool.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "quire/env.h"

namespace quire::bench {
namespace {

constexpr uint32_t kSlotsMax = 1 << 20;
constexpr uint64_t kSlotBytes = 1'835'008;  // 16 tokens of Qwen3-0.6B in f16
constexpr uint32_t kBatchSlots = 1000;
constexpr uint32_t kRounds = 100'000;  // per slice: some milliseconds
constexpr uint32_t kBatchRounds = 500;
constexpr uint32_t kRunRounds = 2000;
constexpr uint32_t kRunSlotsMax = 64;    // of the runs that fill a fragmented pool
constexpr uint32_t kRunSlotsKept = 500;  // per thousand slots, after the others were given back

// The floor: a vector as a stack of free slots behind a mutex, no counts, no checks.
struct PlainFreeList {
  PlainFreeList() {
    for (uint32_t slot = kSlotsMax; slot-- > 0;) free.push_back(slot);
  }
  uint32_t Pop() {
    std::lock_guard lock(mutex);
    const uint32_t slot = free.back();
    free.pop_back();
    return slot;
  }
  void Push(uint32_t slot) {
    std::lock_guard lock(mutex);
    free.push_back(slot);
  }
  void PopMany(std::vector<uint32_t>& out) {
    std::lock_guard lock(mutex);
    for (uint32_t& slot : out) {
      slot = free.back();
      free.pop_back();
    }
  }
  void PushMany(const std::vector<uint32_t>& slots) {
    std::lock_guard lock(mutex);
    free.insert(free.end(), slots.begin(), slots.end());
  }

  std::mutex mutex;
  std::vector<uint32_t> free;
};

Result<std::unique_ptr<pool::Pool>> MakePool(DeviceMemory& memory, Placement placement) {
  return pool::Pool::Create(
      {.name = "bench", .slot_bytes = kSlotBytes, .slots_max = kSlotsMax, .placement = placement},
      memory);
}

// Fills the pool with runs of 1 to kRunSlotsMax slots, then gives runs back in random order until
// kRunSlotsKept of a thousand slots are used.
Result<void> Fragment(pool::Pool& pool) {
  Prng prng(1);
  std::vector<pool::SlotRun> runs;
  for (;;) {
    const auto run = pool.AllocateRun(1 + static_cast<uint32_t>(prng.NextBelow(kRunSlotsMax)));
    if (run) {
      runs.push_back(*run);
    } else if (run.error().code == ErrorCode::kNoSpace) {
      break;
    } else {
      return std::unexpected(run.error());
    }
  }
  while (uint64_t{pool.free_count()} * 1000 < uint64_t{kSlotsMax} * (1000 - kRunSlotsKept)) {
    pool::SlotRun& any = runs[prng.NextBelow(runs.size())];
    pool.ReleaseRun(any);
    any = runs.back();
    runs.pop_back();
  }
  return {};
}

// What a case takes slots from, and its floor.
struct Bench {
  static Result<std::shared_ptr<Bench>> Create(Placement placement, uint32_t threads) {
    auto made = std::make_shared<Bench>();
    QUIRE_ASSIGN(made->pool, MakePool(*made->memory, placement));
    made->threads = MakePinnedPool(threads);
    return made;
  }

  const std::unique_ptr<DeviceMemory> memory = MakeHostMemory(/*huge_pages=*/false);
  std::unique_ptr<pool::Pool> pool;
  PlainFreeList plain;
  std::unique_ptr<Executor> threads;
  const std::unique_ptr<Executor> alone = MakePinnedPool(1);
};

double PlainSlots(Bench& bench) {
  return SecondsOf(*bench.alone, [&] {
    for (uint32_t round = 0; round < kRounds; ++round) bench.plain.Push(bench.plain.Pop());
  });
}

// As every one of the threads sees it, waiting included.
double PoolSlots(Bench& bench) {
  return SecondsOf(*bench.threads, [&] {
    bench.threads->ParallelFor(bench.threads->worker_count(), [&](uint32_t, uint32_t) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        SlotId slot;
        QUIRE_CHECK(bench.pool->Allocate({&slot, 1}));
        QUIRE_CHECK(bench.pool->Release(slot));
      }
    });
  });
}

Result<Subject> AllocateFree(Placement placement, uint32_t threads) {
  QUIRE_ASSIGN(const auto bench, Bench::Create(placement, threads));
  return Timed{.unit = "ns",
               .less_is_better = true,
               .amount = 1e9 / kRounds,
               .slice = fmt::format("{} times 1 slot, taken and given back", kRounds),
               .work = [=](uint32_t) { return PoolSlots(*bench); },
               .floor = [=](uint32_t) { return PlainSlots(*bench); }};
}

// Taking is timed, giving back is not.
Result<Subject> AllocateBatch() {
  QUIRE_ASSIGN(const auto bench, Bench::Create(Placement::kFreeList, 1));
  const auto pool_batches = [=](uint32_t) {
    std::vector<SlotId> slots(kBatchSlots);
    double seconds = 0;
    for (uint32_t round = 0; round < kBatchRounds; ++round) {
      seconds += SecondsOf(*bench->alone, [&] { QUIRE_CHECK(bench->pool->Allocate(slots)); });
      for (const SlotId slot : slots) bench->pool->Release(slot);
    }
    return seconds;
  };
  const auto plain_batches = [=](uint32_t) {
    std::vector<uint32_t> slots(kBatchSlots);
    double seconds = 0;
    for (uint32_t round = 0; round < kBatchRounds; ++round) {
      seconds += SecondsOf(*bench->alone, [&] { bench->plain.PopMany(slots); });
      for (const uint32_t slot : slots) bench->plain.Push(slot);
    }
    return seconds;
  };
  return Timed{.unit = "ns/slot",
               .less_is_better = true,
               .amount = 1e9 / kBatchRounds / kBatchSlots,
               .slice = fmt::format("{} times {} slots in one call", kBatchRounds, kBatchSlots),
               .work = pool_batches,
               .floor = plain_batches};
}

// Runs from a fragmented pool, beside as many slots from the plain list, wherever they lie.
Result<Subject> RunFree(Placement placement, uint32_t slots) {
  QUIRE_ASSIGN(const auto bench, Bench::Create(placement, 1));
  QUIRE_TRY(Fragment(*bench->pool));
  const auto pool_runs = [=](uint32_t) {
    return SecondsOf(*bench->alone, [&] {
      for (uint32_t round = 0; round < kRunRounds; ++round) {
        const auto run = bench->pool->AllocateRun(slots);
        QUIRE_CHECK(run.has_value());
        bench->pool->ReleaseRun(*run);
      }
    });
  };
  const auto plain_runs = [=](uint32_t) {
    std::vector<uint32_t> taken(slots);
    return SecondsOf(*bench->alone, [&] {
      for (uint32_t round = 0; round < kRunRounds; ++round) {
        bench->plain.PopMany(taken);
        bench->plain.PushMany(taken);
      }
    });
  };
  return Timed{
      .unit = "ns",
      .less_is_better = true,
      .amount = 1e9 / kRunRounds,
      .slice = fmt::format("{} times a run of {} slots, taken and given back", kRunRounds, slots),
      .work = pool_runs,
      .floor = plain_runs,
      .note = [=] {
        return fmt::format("fragmentation {:.3f}", bench->pool->free_runs().fragmentation());
      }};
}

}  // namespace

std::vector<Case> PoolCases(const Options& options) {
  std::vector<Case> cases;
  for (const uint32_t threads : options.threads) {
    cases.push_back({.name = fmt::format("allocate_free/t{}", threads),
                     .prepare = [=] { return AllocateFree(Placement::kFreeList, threads); }});
  }
  cases.push_back({.name = "allocate/batch1000/t1", .prepare = AllocateBatch});
  for (const Placement placement : {Placement::kFirstFit, Placement::kBestFit, Placement::kBuddy}) {
    cases.push_back({.name = fmt::format("allocate_free/{}/t1", PlacementName(placement)),
                     .prepare = [=] { return AllocateFree(placement, 1); }});
    for (const uint32_t slots : {8u, 64u}) {
      cases.push_back({.name = fmt::format("run{}_free/{}/t1", slots, PlacementName(placement)),
                       .prepare = [=] { return RunFree(placement, slots); }});
    }
  }
  return cases;
}

}  // namespace quire::bench

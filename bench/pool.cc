// The pool's speed against the least any locked free list costs.
#include "pool/pool.h"

#include <fmt/format.h>

#include <chrono>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/pairs.h"

namespace quire::bench {
namespace {

constexpr uint32_t kSlotsMax = 1 << 20;
constexpr uint64_t kSlotBytes = 1'835'008;  // 16 tokens of Qwen3-0.6B in f16
constexpr uint32_t kBatchSlots = 1000;
constexpr uint32_t kRounds = 200'000;  // per sample: some milliseconds
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

double ThreadNs() { return ThreadSeconds() * 1e9; }

void AllocateAndFree(pool::Pool& pool, uint32_t rounds) {
  for (uint32_t round = 0; round < rounds; ++round) {
    SlotId slot;
    QUIRE_CHECK(pool.Allocate({&slot, 1}));
    QUIRE_CHECK(pool.Release(slot));
  }
}

double PoolNs(pool::Pool& pool) {
  const double start_ns = ThreadNs();
  AllocateAndFree(pool, kRounds);
  return (ThreadNs() - start_ns) / kRounds;
}

double PlainNs(PlainFreeList& list) {
  const double start_ns = ThreadNs();
  for (uint32_t round = 0; round < kRounds; ++round) list.Push(list.Pop());
  return (ThreadNs() - start_ns) / kRounds;
}

// As every one of the threads sees it, waiting included.
double ContendedPoolNs(pool::Pool& pool, uint32_t thread_count) {
  std::latch start(thread_count + 1);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      AllocateAndFree(pool, kRounds);
    });
  }
  start.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / kRounds;
}

double PoolBatchNs(pool::Pool& pool) {
  std::vector<SlotId> slots(kBatchSlots);
  double ns = 0;
  for (uint32_t round = 0; round < kBatchRounds; ++round) {
    const double start_ns = ThreadNs();
    QUIRE_CHECK(pool.Allocate(slots));
    ns += ThreadNs() - start_ns;
    for (const SlotId slot : slots) pool.Release(slot);
  }
  return ns / kBatchRounds / kBatchSlots;
}

double PlainBatchNs(PlainFreeList& list) {
  std::vector<uint32_t> slots(kBatchSlots);
  double ns = 0;
  for (uint32_t round = 0; round < kBatchRounds; ++round) {
    const double start_ns = ThreadNs();
    list.PopMany(slots);
    ns += ThreadNs() - start_ns;
    for (const uint32_t slot : slots) list.Push(slot);
  }
  return ns / kBatchRounds / kBatchSlots;
}

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

// Nanoseconds to take a run and to give it back.
double RunNs(pool::Pool& pool, uint32_t slots) {
  const double start_ns = ThreadNs();
  for (uint32_t round = 0; round < kRunRounds; ++round) {
    const auto run = pool.AllocateRun(slots);
    QUIRE_CHECK(run.has_value());
    pool.ReleaseRun(*run);
  }
  return (ThreadNs() - start_ns) / kRunRounds;
}

// The floor of runs: as many slots from the plain list, wherever they lie.
double PlainRunNs(PlainFreeList& list, uint32_t slots) {
  std::vector<uint32_t> taken(slots);
  const double start_ns = ThreadNs();
  for (uint32_t round = 0; round < kRunRounds; ++round) {
    list.PopMany(taken);
    list.PushMany(taken);
  }
  return (ThreadNs() - start_ns) / kRunRounds;
}

// One slot from a pool that is all free, runs from a fragmented one.
Result<void> MeasurePlacement(const Options& options, Placement placement, PlainFreeList& plain,
                              std::vector<Row>& rows) {
  const auto memory = MakeHostMemory(/*huge_pages=*/false);
  QUIRE_ASSIGN(const auto pool, MakePool(*memory, placement));
  const std::string name = "/" + std::string(PlacementName(placement));
  rows.push_back(MeasurePairs(options, {.name = "allocate_free" + name + "/t1",
                                        .unit = "ns",
                                        .less_is_better = true,
                                        .work = [&] { return PoolNs(*pool); },
                                        .floor = [&] { return PlainNs(plain); }}));
  QUIRE_TRY(Fragment(*pool));
  for (const uint32_t slots : {8u, 64u}) {
    rows.push_back(
        MeasurePairs(options, {.name = "run" + std::to_string(slots) + "_free" + name + "/t1",
                               .unit = "ns",
                               .less_is_better = true,
                               .work = [&] { return RunNs(*pool, slots); },
                               .floor = [&] { return PlainRunNs(plain, slots); }}));
    const double fragmentation = pool->free_runs().fragmentation();
    if (rows.back().note.empty())
      rows.back().note = fmt::format("fragmentation {:.3f}", fragmentation);
  }
  return {};
}

}  // namespace

Result<std::vector<Row>> Pool(const Options& options) {
  if (options.pairs == 0) return Fail(ErrorCode::kInvalidArgument, "pairs must be at least 1");
  const auto memory = MakeHostMemory(/*huge_pages=*/false);
  QUIRE_ASSIGN(const auto pool, MakePool(*memory, Placement::kFreeList));
  PlainFreeList plain;

  std::vector<Row> rows;
  for (const uint32_t threads : options.threads) {
    rows.push_back(MeasurePairs(
        options,
        {.name = "allocate_free/t" + std::to_string(threads),
         .unit = "ns",
         .less_is_better = true,
         .work = [&] { return threads == 1 ? PoolNs(*pool) : ContendedPoolNs(*pool, threads); },
         .floor = [&] { return PlainNs(plain); }}));
  }
  rows.push_back(MeasurePairs(options, {.name = "allocate/batch1000/t1",
                                        .unit = "ns/slot",
                                        .less_is_better = true,
                                        .work = [&] { return PoolBatchNs(*pool); },
                                        .floor = [&] { return PlainBatchNs(plain); }}));
  for (const Placement placement : {Placement::kFirstFit, Placement::kBestFit, Placement::kBuddy}) {
    QUIRE_TRY(MeasurePlacement(options, placement, plain, rows));
  }
  return rows;
}

}  // namespace quire::bench

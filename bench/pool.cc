// The pool's speed against the least any locked free list costs.
#include "pool/pool.h"

#include <time.h>

#include <chrono>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "bench/bench.h"
#include "bench/pairs.h"

namespace quire::bench {
namespace {

constexpr uint32_t kSlotsMax = 1 << 20;
constexpr uint64_t kSlotBytes = 1'835'008;  // 16 tokens of Qwen3-0.6B in f16
constexpr uint32_t kBatchSlots = 1000;
constexpr uint32_t kRounds = 200'000;  // per sample: some milliseconds
constexpr uint32_t kBatchRounds = 500;

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

  std::mutex mutex;
  std::vector<uint32_t> free;
};

// Nanoseconds of this thread on its core: what else the machine runs is not meant.
double ThreadNs() {
  timespec now = {};
  QUIRE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

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

}  // namespace

Result<std::vector<Row>> Pool(const Options& options) {
  if (options.pairs == 0) return Fail(ErrorCode::kInvalidArgument, "pairs must be at least 1");
  const auto memory = MakeHostMemory(/*huge_pages=*/false);
  QUIRE_ASSIGN(const auto pool,
               pool::Pool::Create(
                   {.name = "bench", .slot_bytes = kSlotBytes, .slots_max = kSlotsMax}, *memory));
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
  return rows;
}

}  // namespace quire::bench

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "quire/env.h"

namespace quire {
namespace {

double ProcessCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class ThreadPoolOf : public testing::TestWithParam<uint32_t> {
 protected:
  const std::unique_ptr<Executor> executor_ = MakeThreadPool(GetParam());
};

TEST_P(ThreadPoolOf, HasTheWorkersItWasAskedFor) {
  EXPECT_EQ(executor_->worker_count(), GetParam());
}

TEST_P(ThreadPoolOf, RunsEveryItemOnce) {
  for (const uint32_t items : {0u, 1u, 2u, 3u, 7u, 64u, 1000u}) {
    std::vector<uint32_t> runs(items, 0);  // not atomic: Run must make the writes visible
    executor_->ParallelFor(items, [&](uint32_t item, uint32_t) { ++runs[item]; });
    EXPECT_EQ(runs, std::vector<uint32_t>(items, 1)) << items << " items";
  }
}

TEST_P(ThreadPoolOf, NoTwoRunningCallsShareAWorkerNumber) {
  std::vector<std::atomic<int>> inside(GetParam());
  std::atomic<int> clashes = 0;
  executor_->ParallelFor(500, [&](uint32_t, uint32_t worker) {
    if (worker >= inside.size() || inside[worker].fetch_add(1) != 0) {
      ++clashes;
      return;
    }
    for (int i = 0; i < 50; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    inside[worker].fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

// Runs of different lengths back to back, so that late workers join the next Run at every stage.
TEST_P(ThreadPoolOf, ManySmallRunsLoseNothing) {
  uint64_t expected = 0;
  std::vector<uint64_t> sums(GetParam() * 16, 0);  // [worker][padding]
  for (uint32_t run = 0; run < 20'000; ++run) {
    const uint32_t items = run % 5;
    expected += items * uint64_t{run};
    executor_->ParallelFor(items, [&](uint32_t, uint32_t worker) { sums[worker * 16] += run; });
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  EXPECT_EQ(total, expected);
}

TEST_P(ThreadPoolOf, WakesAfterSleep) {
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> ran = 0;
    executor_->ParallelFor(8, [&](uint32_t, uint32_t) { ++ran; });
    ASSERT_EQ(ran.load(), 8);
  }
}

// The caller is the quickest, so it has nothing left to do while others are still at work.
TEST_P(ThreadPoolOf, WaitsForTheSlowestWorker) {
  std::atomic<int> ran = 0;
  executor_->ParallelFor(4, [&](uint32_t, uint32_t worker) {
    std::this_thread::sleep_for(std::chrono::milliseconds(worker == 0 ? 3 : 20));
    ++ran;
  });
  EXPECT_EQ(ran.load(), 4);
}

INSTANTIATE_TEST_SUITE_P(Workers, ThreadPoolOf, testing::Values(1, 2, 3, 8));

TEST(ThreadPool, NoWorkersMeansTheCallerAlone) { EXPECT_EQ(MakeThreadPool(0)->worker_count(), 1u); }

// Two items that wait for each other finish only when two threads run them.
TEST(ThreadPool, ItemsRunAtTheSameTime) {
  const auto executor = MakeThreadPool(2);
  std::atomic<int> arrived = 0;
  std::atomic<int> met = 0;
  executor->ParallelFor(2, [&](uint32_t, uint32_t) {
    ++arrived;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (arrived.load() < 2 && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::yield();
    }
    if (arrived.load() == 2) ++met;
  });
  EXPECT_EQ(met.load(), 2);
}

TEST(ThreadPool, AnIdlePoolBurnsNothing) {
  const auto executor = MakeThreadPool(4);
  executor->ParallelFor(16, [](uint32_t, uint32_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the spinning ends
  const double before = ProcessCpuSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(ProcessCpuSeconds() - before, 0.02);  // three spinning workers would use up to 0.6
}

TEST(ThreadPool, EndsWhetherItsWorkersSleepOrSpin) {
  for (int round = 0; round < 200; ++round) {
    const auto executor = MakeThreadPool(3);
    if (round % 3 != 0) executor->ParallelFor(3, [](uint32_t, uint32_t) {});
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ThreadPoolDeathTest, ARunInsideARunIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto executor = MakeThreadPool(2);
        executor->ParallelFor(
            2, [&](uint32_t, uint32_t) { executor->ParallelFor(2, [](uint32_t, uint32_t) {}); });
      },
      "one Run at a time");
}

}  // namespace
}  // namespace quire

#include "base/combining_mutex.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/prng.h"
#include "base/spin.h"

namespace quire {
namespace {

struct Counter {
  CombiningMutex mutex{LockRank{10}};
  uint64_t value QUIRE_GUARDED_BY(mutex) = 0;
  bool busy QUIRE_GUARDED_BY(mutex) = false;
  uint64_t overlaps QUIRE_GUARDED_BY(mutex) = 0;

  // Not one step, so that two at once would be seen.
  void Add(uint64_t n) QUIRE_REQUIRES(mutex) {
    if (busy) ++overlaps;
    busy = true;
    const uint64_t before = value;
    if (before % 64 == 0) std::this_thread::yield();
    value = before + n;
    busy = false;
  }
};

void JoinAll(std::vector<std::thread>& threads) {
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

TEST(CombiningMutex, EverySectionRunsOnceAndAlone) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 5000;
  Counter counter;
  std::array<uint64_t, kThreads> sums{};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&counter, &sum = sums[t], t] {
      Prng prng(t);
      for (uint64_t i = 0; i < kRounds; ++i) {
        const uint64_t n = prng.NextBelow(100);
        uint64_t times = 0;
        switch (prng.NextBelow(3)) {
          case 0:
            counter.mutex.Run([&]() QUIRE_REQUIRES(counter.mutex) {
              counter.Add(n);
              ++times;
            });
            break;
          case 1: {
            MutexLock lock(counter.mutex);
            counter.Add(n);
            ++times;
            break;
          }
          default:
            if (counter.mutex.TryLock()) {
              counter.Add(n);
              ++times;
              counter.mutex.Unlock();
            }
        }
        EXPECT_LE(times, 1u);
        sum += n * times;
      }
    });
  }
  JoinAll(threads);
  uint64_t sum = 0;
  for (const uint64_t one : sums) sum += one;
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, sum);
  EXPECT_EQ(counter.overlaps, 0u);
}

TEST(CombiningMutex, WhatASectionWroteIsSeenAfterRun) {
  CombiningMutex mutex(LockRank{10});
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&mutex, t] {
      for (int i = 0; i < 2000; ++i) {
        int in = i + t;  // written by this thread, read by whoever runs the section, and back
        int out = 0;
        const int answer = mutex.Run([&] {
          out = in + 1;
          return in + 2;
        });
        EXPECT_EQ(out, i + t + 1);
        EXPECT_EQ(answer, i + t + 2);
      }
    });
  }
  JoinAll(threads);
}

TEST(CombiningMutex, WhatASectionThrowsComesToItsOwnThread) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 2000;
  Counter counter;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&counter, t] {
      uint64_t caught = 0;
      for (uint64_t i = 0; i < kRounds; ++i) {
        try {
          const uint64_t answer = counter.mutex.Run([&]() QUIRE_REQUIRES(counter.mutex) {
            counter.Add(1);
            if (i % 2 == 0) throw t * kRounds + i;
            return i;
          });
          EXPECT_EQ(answer, i);
        } catch (uint64_t thrown) {
          EXPECT_EQ(thrown, t * kRounds + i);
          ++caught;
        }
      }
      EXPECT_EQ(caught, kRounds / 2);
    });
  }
  JoinAll(threads);
  EXPECT_THROW(counter.mutex.Run([] { throw 1; }), int);
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kRounds);
  EXPECT_EQ(counter.overlaps, 0u);
}

// Longer than anybody spins, and mostly long enough for a thread to come and wait.
void LetOthersWait() { std::this_thread::sleep_for(kSpinTime * 250); }

// Who sleeps is woken, with a section as well as for the lock; else this hangs.
TEST(CombiningMutex, SleepersWake) {
  Counter counter;
  std::vector<std::thread> threads;
  counter.mutex.Lock();
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&counter, t] {
      if (t % 2 == 0) {
        counter.mutex.Run([&]() QUIRE_REQUIRES(counter.mutex) { ++counter.value; });
      } else {
        MutexLock lock(counter.mutex);
        ++counter.value;
      }
    });
  }
  LetOthersWait();
  counter.mutex.Unlock();
  JoinAll(threads);
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 6u);
}

TEST(CombiningMutex, TheHolderRunsTheSectionsOfThoseWhoWait) {
  CombiningMutex mutex(LockRank{10});
  // A thread may come too late to leave its section with the holder, but not always.
  for (int round = 0; round < 100; ++round) {
    std::thread::id ran_on;
    mutex.Lock();
    std::thread other([&] { mutex.Run([&] { ran_on = std::this_thread::get_id(); }); });
    LetOthersWait();
    mutex.Unlock();
    other.join();
    if (ran_on == std::this_thread::get_id()) return;
  }
  FAIL() << "every thread ran its own section";
}

TEST(CombiningMutex, NobodyServesOthersForEver) {
  CombiningMutex mutex(LockRank{10});
  const std::thread::id me = std::this_thread::get_id();
  std::atomic<uint32_t> on_this_thread = 0;
  std::atomic<uint32_t> all = 0;
  std::vector<std::thread> threads;
  mutex.Lock();
  for (uint32_t t = 0; t < CombiningMutex::kSectionsMax + 20; ++t) {
    threads.emplace_back([&] {
      mutex.Run([&] {
        if (std::this_thread::get_id() == me) ++on_this_thread;
        ++all;
      });
    });
  }
  LetOthersWait();
  mutex.Unlock();
  JoinAll(threads);
  EXPECT_LE(on_this_thread, CombiningMutex::kSectionsMax);
  EXPECT_GT(on_this_thread, 0u);
  EXPECT_EQ(all, CombiningMutex::kSectionsMax + 20);
}

// Who waits for the lock itself gets it in its turn, and the sections after it are not lost.
TEST(CombiningMutex, FirstComeFirstServed) {
  constexpr int kWaiters = 6;
  constexpr int kRounds = 50;
  Counter counter;
  int in_order = 0;
  // A thread may be slow to come, but not in every round.
  for (int round = 0; round < kRounds && in_order < 3; ++round) {
    std::vector<int> order;
    std::vector<int> expected;
    std::vector<std::thread> threads;
    counter.mutex.Lock();
    for (int t = 0; t < kWaiters; ++t) {
      expected.push_back(t);
      threads.emplace_back([&, t] {
        if (t == 2 || t == 3) {
          MutexLock lock(counter.mutex);
          order.push_back(t);
        } else {
          counter.mutex.Run([&] { order.push_back(t); });
        }
      });
      LetOthersWait();
    }
    counter.mutex.Unlock();
    JoinAll(threads);
    ASSERT_EQ(order.size(), expected.size());
    if (order == expected) ++in_order;
  }
  EXPECT_EQ(in_order, 3);
}

TEST(CombiningMutex, ASectionMayTakeHigherLocks) {
  CombiningMutex low(LockRank{10});
  Mutex high(LockRank{20});
  bool ran = false;
  low.Run([&] {
    MutexLock lock(high);
    ran = true;
  });
  EXPECT_TRUE(ran);
}

#if defined(QUIRE_DEBUG_CHECKS)
TEST(CombiningMutexDeathTest, FallingRankIsABug) {
  CombiningMutex low(LockRank{10});
  CombiningMutex same(LockRank{20});
  Mutex high(LockRank{20});
  MutexLock lock(high);
  EXPECT_DEATH(low.Run([] {}), "taking a lock of rank 10 while holding rank 20");
  EXPECT_DEATH(same.Run([] {}), "taking a lock of rank 20 while holding rank 20");
}

TEST(CombiningMutexDeathTest, ASectionHoldsTheRank) {
  CombiningMutex mutex(LockRank{20});
  Mutex low(LockRank{10});
  EXPECT_DEATH(mutex.Run([&] { MutexLock lock(low); }),
               "taking a lock of rank 10 while holding rank 20");
}
#endif

}  // namespace
}  // namespace quire

#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <latch>
#include <thread>
#include <vector>

namespace quire {
namespace {

struct Counter {
  Mutex mutex{LockRank{10}};
  CondVar changed;
  int value QUIRE_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, GuardsACounter) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < 1000; ++i) {
        MutexLock lock(counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 4000);
}

struct Pair {
  SharedMutex mutex{LockRank{10}};
  int first QUIRE_GUARDED_BY(mutex) = 0;
  int second QUIRE_GUARDED_BY(mutex) = 0;
};

TEST(SharedMutex, ReadersNeverSeeHalfAWrite) {
  Pair pair;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pair, t] {
      for (int i = 0; i < 1000; ++i) {
        if (t < 2) {
          MutexLock lock(pair.mutex);
          ++pair.first;
          ++pair.second;
        } else {
          SharedLock lock(pair.mutex);
          ASSERT_EQ(pair.first, pair.second);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  SharedLock lock(pair.mutex);
  EXPECT_EQ(pair.first, 2000);
}

// Each waits for the other inside: if one kept the other out, this would not end.
TEST(SharedMutex, ReadersAreInsideAtOnce) {
  SharedMutex mutex(LockRank{10});
  std::latch both(2);
  const auto read = [&] {
    SharedLock lock(mutex);
    both.arrive_and_wait();
  };
  std::thread other(read);
  read();
  other.join();
}

TEST(Mutex, WaitersWake) {
  Counter counter;
  std::thread waiter([&counter] {
    MutexLock lock(counter.mutex);
    while (counter.value == 0) counter.changed.Wait(counter.mutex);
    counter.value = 2;
    counter.changed.NotifyAll();
  });
  {
    MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.NotifyOne();
    while (counter.value != 2) counter.changed.Wait(counter.mutex);
  }
  waiter.join();
}

TEST(Mutex, RisingRanksAndAnyOrderOfRelease) {
  Mutex low(LockRank{10});
  Mutex middle(LockRank{20});
  Mutex high(LockRank{30});
  for (int round = 0; round < 3; ++round) {
    low.Lock();
    middle.Lock();
    low.Unlock();
    high.Lock();
    middle.Unlock();
    high.Unlock();
  }
}

TEST(Mutex, AWaitWithALimitEndsByItselfAndHoldsTheMutex) {
  Mutex mutex(LockRank{10});
  CondVar never;
  std::future<void> other;
  {
    MutexLock lock(mutex);
    never.WaitFor(mutex, 1000);
    other = std::async(std::launch::async, [&] { MutexLock theirs(mutex); });
    EXPECT_EQ(other.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  }
  other.get();
}

TEST(Mutex, AWaitWithALimitIsWoken) {
  Counter counter;
  std::thread setter([&counter] {
    MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.NotifyOne();
  });
  {
    MutexLock lock(counter.mutex);
    while (counter.value == 0) counter.changed.WaitFor(counter.mutex, UINT64_MAX);
  }
  setter.join();
}

#if defined(QUIRE_DEBUG_CHECKS)
// The analysis would refuse a lock that is never given back.
void LockForEver(Mutex& mutex) QUIRE_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }

TEST(MutexDeathTest, FallingOrEqualRankIsABug) {
  Mutex low(LockRank{10});
  Mutex high(LockRank{20});
  Mutex same(LockRank{20});
  MutexLock lock(high);
  EXPECT_DEATH(LockForEver(low), "taking a lock of rank 10 while holding rank 20");
  EXPECT_DEATH(LockForEver(same), "taking a lock of rank 20 while holding rank 20");
}

TEST(MutexDeathTest, WaitingUnderAHigherLockIsABug) {
  Mutex low(LockRank{10});
  Mutex high(LockRank{20});
  CondVar changed;
  MutexLock outer(low);
  MutexLock inner(high);
  EXPECT_DEATH(changed.Wait(low), "rank 10 while holding rank 20");
}

void ReadForEver(SharedMutex& mutex) QUIRE_NO_THREAD_SAFETY_ANALYSIS { mutex.LockShared(); }
void WriteForEver(SharedMutex& mutex) QUIRE_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }

TEST(SharedMutexDeathTest, ReadersKeepTheOrderToo) {
  SharedMutex low(LockRank{10});
  SharedMutex high(LockRank{20});
  {
    SharedLock outer(low);
    MutexLock inner(high);
  }
  SharedLock lock(high);
  EXPECT_DEATH(ReadForEver(low), "taking a lock of rank 10 while holding rank 20");
  EXPECT_DEATH(WriteForEver(low), "taking a lock of rank 10 while holding rank 20");
  EXPECT_DEATH(ReadForEver(high), "taking a lock of rank 20 while holding rank 20");
}
#endif

}  // namespace
}  // namespace quire

#include "base/mutex.h"

#include <gtest/gtest.h>

#include <future>
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

TEST(Mutex, TryLockFailsWhileAnotherThreadHolds) {
  Mutex mutex(LockRank::kLeaf);
  mutex.Lock();
  std::thread other([&mutex] {
    if (mutex.TryLock()) {
      ADD_FAILURE() << "took a lock that is held";
      mutex.Unlock();
    }
  });
  other.join();
  mutex.Unlock();
  const bool taken = mutex.TryLock();
  EXPECT_TRUE(taken);
  if (taken) mutex.Unlock();
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
  {
    MutexLock lock(mutex);
    never.WaitFor(mutex, 1000);
    EXPECT_FALSE(std::async(std::launch::async, [&] {
                   const bool taken = mutex.TryLock();
                   if (taken) mutex.Unlock();
                   return taken;
                 }).get());
  }
  MutexLock lock(mutex);
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

TEST(Mutex, TryLockMayGoBackwards) {
  Mutex low(LockRank{10});
  Mutex high(LockRank{20});
  MutexLock lock(high);
  const bool taken = low.TryLock();
  EXPECT_TRUE(taken);
  if (taken) low.Unlock();
}
#endif

}  // namespace
}  // namespace quire

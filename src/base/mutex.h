// Mutexes that know their place: Clang checks what they guard, debug builds check their order.
#ifndef QUIRE_BASE_MUTEX_H_
#define QUIRE_BASE_MUTEX_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "base/lock_ranks.h"
#include "base/thread_annotations.h"

namespace quire {

/// A mutex with a rank.
///
/// Threads: any thread
/// Cost:    the order is checked only with QUIRE_DEBUG_CHECKS (presets dev, asan, tsan, fuzz)
class QUIRE_CAPABILITY("mutex") Mutex {
 public:
  explicit Mutex(LockRank rank) : rank_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() QUIRE_ACQUIRE();
  void Unlock() QUIRE_RELEASE();

 private:
  friend class CondVar;
  std::mutex mutex_;
  const LockRank rank_;
};

/// A mutex with a rank that many readers may hold at once, or one writer alone. A thread takes it
/// once, to read as to write.
///
/// Threads: any thread
class QUIRE_CAPABILITY("shared_mutex") SharedMutex {
 public:
  explicit SharedMutex(LockRank rank) : rank_(rank) {}
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void Lock() QUIRE_ACQUIRE();
  void Unlock() QUIRE_RELEASE();
  void LockShared() QUIRE_ACQUIRE_SHARED();
  void UnlockShared() QUIRE_RELEASE_SHARED();

 private:
  std::shared_mutex mutex_;
  const LockRank rank_;
};

/// Holds a mutex for a scope, alone: `MutexLock lock(mutex_);`, of whatever class it is.
template <typename AnyMutex>
class QUIRE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(AnyMutex& mutex) QUIRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() QUIRE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  AnyMutex& mutex_;
};

/// Shares a mutex with other readers for a scope.
class QUIRE_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) QUIRE_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.LockShared();
  }
  ~SharedLock() QUIRE_RELEASE() { mutex_.UnlockShared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

/// A condition variable of one Mutex. Wait in a loop over the condition, with the mutex held:
/// `while (queue_.empty()) ready_.Wait(mutex_);` env's clock says when things happen, so a wait
/// with a limit is for threads that turn a state machine, which looks at that clock itself.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  /// Lets go of the mutex while it waits; may wake without a reason.
  void Wait(Mutex& mutex) QUIRE_REQUIRES(mutex);
  /// The same, for at most so long (an hour, where it is more).
  void WaitFor(Mutex& mutex, uint64_t timeout_us) QUIRE_REQUIRES(mutex);
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace quire

#endif  // QUIRE_BASE_MUTEX_H_

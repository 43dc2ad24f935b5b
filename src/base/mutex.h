// Mutexes with ranks: Clang checks what they guard (the clang presets; nothing under g++), debug
// builds check the one order in which all locks are taken.
#ifndef QUIRE_BASE_MUTEX_H_
#define QUIRE_BASE_MUTEX_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define QUIRE_THREAD_ATTRIBUTE_(attribute) __attribute__((attribute))
#else
#define QUIRE_THREAD_ATTRIBUTE_(attribute)
#endif

// A member that may only be touched while the mutex is held; PT: what the pointer points at.
#define QUIRE_GUARDED_BY(mutex) QUIRE_THREAD_ATTRIBUTE_(guarded_by(mutex))
#define QUIRE_PT_GUARDED_BY(mutex) QUIRE_THREAD_ATTRIBUTE_(pt_guarded_by(mutex))
// A function that its caller must call with, or without, the mutexes held.
#define QUIRE_REQUIRES(...) QUIRE_THREAD_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define QUIRE_REQUIRES_SHARED(...) QUIRE_THREAD_ATTRIBUTE_(requires_shared_capability(__VA_ARGS__))
#define QUIRE_EXCLUDES(...) QUIRE_THREAD_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
// A function that takes or gives back the mutexes.
#define QUIRE_ACQUIRE(...) QUIRE_THREAD_ATTRIBUTE_(acquire_capability(__VA_ARGS__))
#define QUIRE_RELEASE(...) QUIRE_THREAD_ATTRIBUTE_(release_capability(__VA_ARGS__))
#define QUIRE_ACQUIRE_SHARED(...) QUIRE_THREAD_ATTRIBUTE_(acquire_shared_capability(__VA_ARGS__))
#define QUIRE_RELEASE_SHARED(...) QUIRE_THREAD_ATTRIBUTE_(release_shared_capability(__VA_ARGS__))
// Types that are locks, and scopes that hold one.
#define QUIRE_CAPABILITY(name) QUIRE_THREAD_ATTRIBUTE_(capability(name))
#define QUIRE_SCOPED_CAPABILITY QUIRE_THREAD_ATTRIBUTE_(scoped_lockable)
// For the few bodies the analysis cannot follow; say why beside it.
#define QUIRE_NO_THREAD_SAFETY_ANALYSIS QUIRE_THREAD_ATTRIBUTE_(no_thread_safety_analysis)

namespace quire {

/// A place in the one order in which locks are taken: a thread that holds rank r may only take a
/// rank above r, so two threads cannot wait for each other. All of them, lowest first:
enum class LockRank : uint16_t {
  kRegistryResize = 1,  // registry::Registry: one Resize at a time
  kRegistry = 2,        // registry::Registry: which owners and caches there are
  kOwner = 3,           // registry::OwnerCache: the blocks of its sequence
  kOwnerLayer = 4,      // registry::OwnerCache: one writer of a layer
  kCachePin = 5,        // cache::Pinning: one Pin at a time
  kCacheResize = 6,     // cache::Resizing: one Resize at a time
  kWorker = 7,          // transfer::Worker: one call of Turn at a time
  kSequences = 8,       // cache::Sequences: which sequences there are
  kReading = 9,         // cache::LockedState: one block is read without a hold
  kSequence = 10,       // cache::SequenceImpl
  kCache = 20,          // cache::LockedState: index, accounts, slots
  kPool = 30,           // pool::Pool
  kDeviceOps = 35,      // cuda: staging memory of block operations
  kDeviceWaiting = 36,  // cuda: what waits to be launched together
  kDeviceStreams = 37,  // env: streams of a device that is the host
  kBlockStoreC = 39,    // embed: batches of a quire_store that ended
  kBlockStore = 40,     // store: batches of a BlockStore
  kTransfers = 41,      // transfer::Transfers: the store, and what is under way there
  kLeaf = 65535,        // nothing else is taken while it is held
};

/// What the calling thread holds; nothing is kept or checked without QUIRE_DEBUG_CHECKS.
namespace lock_ranks {

/// Stops if a lock of this rank may not be waited for now.
void CheckOrder(LockRank rank);
/// Notes that the thread holds a lock of this rank, which is the highest so far.
void Remember(LockRank rank);
/// Notes that it no longer holds one. Stops if it never did.
void Forget(LockRank rank);

}  // namespace lock_ranks

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
/// with a limit is for threads that tick a state machine, which reads that clock itself.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  /// Lets go of the mutex while it waits; may wake without a reason.
  void Wait(Mutex& mutex) QUIRE_REQUIRES(mutex);
  /// The same, for at most so long (an hour, where it is more).
  void WaitFor(Mutex& mutex, uint64_t timeout_us) QUIRE_REQUIRES(mutex);
  void NotifyOne();
  void NotifyAll();

 private:
  std::condition_variable condition_;
};

}  // namespace quire

#endif  // QUIRE_BASE_MUTEX_H_

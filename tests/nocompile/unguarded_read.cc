// A guarded member read without its lock.
// compiler: clang++-19
// flags: -Wthread-safety -Werror
// expect: requires holding mutex
#include "base/mutex.h"

class Counter {
 public:
  int Value() {
#ifndef QUIRE_MUST_NOT_COMPILE
    quire::MutexLock lock(mutex_);
#endif
    return value_;
  }

 private:
  quire::Mutex mutex_{quire::LockRank{10}};
  int value_ QUIRE_GUARDED_BY(mutex_) = 0;
};

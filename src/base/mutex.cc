#include "base/mutex.h"

namespace quire {

void Mutex::Lock() {
  lock_ranks::CheckOrder(rank_);
  mutex_.lock();
  lock_ranks::Remember(rank_);
}

void Mutex::Unlock() {
  lock_ranks::Forget(rank_);
  mutex_.unlock();
}

void SharedMutex::Lock() {
  lock_ranks::CheckOrder(rank_);
  mutex_.lock();
  lock_ranks::Remember(rank_);
}

void SharedMutex::Unlock() {
  lock_ranks::Forget(rank_);
  mutex_.unlock();
}

void SharedMutex::LockShared() {
  lock_ranks::CheckOrder(rank_);
  mutex_.lock_shared();
  lock_ranks::Remember(rank_);
}

void SharedMutex::UnlockShared() {
  lock_ranks::Forget(rank_);
  mutex_.unlock_shared();
}

void CondVar::Wait(Mutex& mutex) {
  lock_ranks::Forget(mutex.rank_);
  lock_ranks::CheckOrder(mutex.rank_);  // it is taken again below: it must be the top one held
  std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
  condition_.wait(lock);
  lock.release();
  lock_ranks::Remember(mutex.rank_);
}

}  // namespace quire

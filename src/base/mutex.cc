#include "base/mutex.h"

#include <algorithm>
#include <chrono>

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

namespace {

// Lets `wait` have the std::mutex, which the caller holds and will hold again.
template <typename Wait>
void WaitWith(std::mutex& mutex, LockRank rank, Wait wait) {
  lock_ranks::Forget(rank);
  lock_ranks::CheckOrder(rank);  // it is taken again below: it must be the top one held
  std::unique_lock<std::mutex> lock(mutex, std::adopt_lock);
  wait(lock);
  lock.release();
  lock_ranks::Remember(rank);
}

}  // namespace

void CondVar::Wait(Mutex& mutex) {
  WaitWith(mutex.mutex_, mutex.rank_, [&](auto& lock) { condition_.wait(lock); });
}

void CondVar::WaitFor(Mutex& mutex, uint64_t timeout_us) {
  // Longer ones would overflow in the library's sum with the time now.
  constexpr uint64_t kLongestUs = 3'600'000'000;
  const auto timeout = std::chrono::microseconds(std::min(timeout_us, kLongestUs));
  WaitWith(mutex.mutex_, mutex.rank_, [&](auto& lock) { condition_.wait_for(lock, timeout); });
}

}  // namespace quire

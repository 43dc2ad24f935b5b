#include "base/mutex.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "base/check.h"

namespace quire::lock_ranks {

#if defined(QUIRE_DEBUG_CHECKS)

namespace {

// The ranks this thread holds, in rising order because each taken lock must be above the last. They
// may be given back in any order.
struct HeldRanks {
  std::array<LockRank, 16> ranks;
  size_t count = 0;
};
thread_local HeldRanks held;

}  // namespace

void CheckOrder(LockRank rank) {
  if (held.count == 0) return;
  const LockRank top = held.ranks[held.count - 1];
  QUIRE_CHECK_MSG(rank > top, "taking a lock of rank " + std::to_string(static_cast<int>(rank)) +
                                  " while holding rank " + std::to_string(static_cast<int>(top)));
}

void Remember(LockRank rank) {
  QUIRE_CHECK(held.count < held.ranks.size());
  held.ranks[held.count++] = rank;
}

void Forget(LockRank rank) {
  size_t place = held.count;
  while (place > 0 && held.ranks[place - 1] != rank) --place;
  QUIRE_CHECK_MSG(place > 0, "giving back a lock that this thread does not hold");
  for (; place < held.count; ++place) held.ranks[place - 1] = held.ranks[place];
  --held.count;
}

#else

void CheckOrder(LockRank) {}
void Remember(LockRank) {}
void Forget(LockRank) {}

#endif

}  // namespace quire::lock_ranks

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

// Lends the std::mutex to `wait`; the caller holds it before and afterwards.
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

void CondVar::NotifyOne() { condition_.notify_one(); }
void CondVar::NotifyAll() { condition_.notify_all(); }

}  // namespace quire

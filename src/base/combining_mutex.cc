#include "base/combining_mutex.h"

#include "base/spin.h"

namespace quire {
namespace {

// CombiningMutex::state_ without anybody waiting.
constexpr uintptr_t kFree = 0;
constexpr uintptr_t kHeld = 1;

// Turn::state.
constexpr uint32_t kWaiting = 0;
constexpr uint32_t kAsleep = 1;
constexpr uint32_t kDone = 2;    // the section was run
constexpr uint32_t kHolder = 3;  // the lock is its thread's now

// Looks at a free lock by one whose last section another thread ran: that one has what the lock
// guards in its cache and mostly comes back at once.
constexpr int kLooks = 16;

thread_local const CombiningMutex* served_by = nullptr;

}  // namespace

// One who waits, on its own stack: a cache line for the holder to read. It may be gone as soon as
// its state says that its turn came.
struct alignas(64) CombiningMutex::Turn {
  void* section = nullptr;
  void (*call)(void*) noexcept = nullptr;  // null: it wants the lock itself
  Turn* next = nullptr;                    // while it is pushed, the one that came before it
  std::atomic<uint32_t> state = kWaiting;
  std::condition_variable* wake = nullptr;  // set before it sleeps
};

void CombiningMutex::RunAny(void* section, void (*call)(void*) noexcept)
    QUIRE_NO_THREAD_SAFETY_ANALYSIS {  // whether it holds the lock is what Enter returns
  lock_ranks::CheckOrder(rank_);
  Turn turn{.section = section, .call = call};
  if (!Enter(turn)) return;
  lock_ranks::Remember(rank_);
  call(section);
  Unlock();
}

void CombiningMutex::Lock() {
  lock_ranks::CheckOrder(rank_);
  Turn turn;
  Enter(turn);
  lock_ranks::Remember(rank_);
}

bool CombiningMutex::TryLock() {
  uintptr_t free = kFree;
  if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
    return false;
  }
  lock_ranks::Remember(rank_);
  return true;
}

// True: the caller holds the lock. False: its section was run.
bool CombiningMutex::Enter(Turn& turn) {
  if (served_by == this) {
    for (int i = 0; i < kLooks && state_.load(std::memory_order_relaxed) == kFree; ++i) Pause();
  }
  served_by = nullptr;
  uintptr_t seen = kFree;
  while (!state_.compare_exchange_weak(seen,
                                       seen == kFree ? kHeld : reinterpret_cast<uintptr_t>(&turn),
                                       std::memory_order_acq_rel, std::memory_order_relaxed)) {
    turn.next = seen == kFree || seen == kHeld ? nullptr : reinterpret_cast<Turn*>(seen);
  }
  if (seen == kFree) return true;
  Await(turn);
  if (turn.state.load(std::memory_order_relaxed) == kHolder) return true;
  served_by = this;
  return false;
}

void CombiningMutex::Await(Turn& turn) {
  const auto came = [&turn] { return turn.state.load(std::memory_order_acquire) != kWaiting; };
  if (Spin(came)) return;
  std::condition_variable wake;
  std::unique_lock lock(sleep_mutex_);
  turn.wake = &wake;
  uint32_t waiting = kWaiting;
  if (!turn.state.compare_exchange_strong(waiting, kAsleep, std::memory_order_acquire)) return;
  wake.wait(lock, [&turn] { return turn.state.load(std::memory_order_acquire) != kAsleep; });
}

// Of one who sleeps the state changes under the mutex, so that it is not gone before it was woken.
void CombiningMutex::End(Turn& turn, uint32_t state) {
  uint32_t waiting = kWaiting;
  if (turn.state.compare_exchange_strong(waiting, state, std::memory_order_acq_rel)) return;
  const std::lock_guard lock(sleep_mutex_);
  turn.state.store(state, std::memory_order_release);
  turn.wake->notify_one();
}

// Those who have come to wait since the last time, who came first at the front.
CombiningMutex::Turn* CombiningMutex::TakeQueue() {
  auto* last = reinterpret_cast<Turn*>(state_.exchange(kHeld, std::memory_order_acquire));
  Turn* first = nullptr;
  while (last != nullptr) {
    Turn* const before = last->next;
    last->next = first;
    first = last;
    last = before;
  }
  return first;
}

void CombiningMutex::Unlock() {
  for (uint32_t sections = 0;; ++sections) {
    if (queue_ == nullptr) {
      uintptr_t held = kHeld;
      if (state_.compare_exchange_strong(held, kFree, std::memory_order_release,
                                         std::memory_order_relaxed)) {
        break;
      }
      queue_ = TakeQueue();
    }
    Turn& turn = *queue_;
    queue_ = turn.next;
    if (turn.call == nullptr || sections == kSectionsMax) {
      End(turn, kHolder);  // who also has the queue from here on
      break;
    }
    turn.call(turn.section);
    End(turn, kDone);
  }
  lock_ranks::Forget(rank_);
}

}  // namespace quire

#include "sim/turns/turns.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/prng.h"
#include "base/sync_point.h"

namespace quire::sim {
namespace {

/// Many times what the longest run takes.
constexpr uint64_t kTurnsMax = 5'000'000;

/// Printed on stderr if the program is stopped. A buffer, because a signal's handler writes it.
std::array<char, 64> epitaph;

void SayEpitaph(int signal) {
  static_cast<void>(
      ::write(STDERR_FILENO, epitaph.data(), std::string_view(epitaph.data()).size()));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Which threads may run. Only the running thread uses it, so nothing in it needs a lock.
class Schedule {
 public:
  Schedule(uint64_t seed, size_t threads) : prng_(seed), members_(threads) {
    for (auto& member : members_) member = std::make_unique<Member>();
    for (auto& member : members_) member->rank = prng_.Next64();
    goes_by_rank_ = prng_.NextChance(2);
    one_of_ = uint64_t{1} << prng_.NextBelow(goes_by_rank_ ? 8 : 4);
  }

  uint64_t changes() const { return changes_; }

  /// Wakes the first thread, from outside.
  void Begin() { Wake(prng_.NextBelow(members_.size())); }
  void AwaitTurn(size_t self) { members_[self]->turn.acquire(); }

  /// May switch to another thread.
  void Offer(size_t self) {
    if (!prng_.NextChance(one_of_)) return;
    members_[prng_.NextBelow(members_.size())]->rank = prng_.Next64();
    Pass(self);
  }
  /// The thread waits for what others do.
  void PassToOthers(size_t self) {
    members_[self]->rank = 0;
    Pass(self);
  }
  /// Switches to another thread, if one can run.
  void Pass(size_t self) {
    QUIRE_CHECK_MSG(++turns_ < kTurnsMax, "turns: they do not end");
    const std::optional<size_t> next = SomeReady();
    QUIRE_CHECK_MSG(next.has_value(), "turns: nobody can go on: " + Waiting());
    if (*next == self) return;
    ++changes_;
    Wake(*next);
    AwaitTurn(self);
  }
  /// Waits until another thread releases `lock`, or wakes the waiters of it.
  void WaitFor(size_t self, const void* lock, LockRank rank) {
    members_[self]->wants = lock;
    members_[self]->wanted_rank = rank;
    Pass(self);
  }
  void GaveBack(const void* lock) {
    for (auto& member : members_) {
      if (member->wants == lock) member->wants = nullptr;
    }
  }
  /// Lets one of the threads that wait for this run.
  void WakeOne(const void* condition) {
    std::vector<Member*> waiting;
    for (auto& member : members_) {
      if (member->wants == condition) waiting.push_back(member.get());
    }
    if (!waiting.empty()) waiting[prng_.NextBelow(waiting.size())]->wants = nullptr;
  }
  void End(size_t self) {
    members_[self]->ended = true;
    if (const std::optional<size_t> next = SomeReady()) return Wake(*next);
    const bool all =
        std::ranges::all_of(members_, [](const auto& member) { return member->ended; });
    QUIRE_CHECK_MSG(all, "turns: nobody can go on: " + Waiting());
  }

 private:
  struct Member {
    std::binary_semaphore turn{0};
    uint64_t rank = 0;
    const void* wants = nullptr;  // a lock that another one has, or a condition
    LockRank wanted_rank{};       // of it
    bool ended = false;
  };

  void Wake(size_t member) { members_[member]->turn.release(); }

  std::optional<size_t> SomeReady() {
    std::vector<size_t> ready;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!members_[i]->ended && members_[i]->wants == nullptr) ready.push_back(i);
    }
    if (ready.empty()) return std::nullopt;
    if (!goes_by_rank_) return ready[prng_.NextBelow(ready.size())];
    return *std::ranges::max_element(ready, {}, [&](size_t i) { return members_[i]->rank; });
  }
  std::string Waiting() const {
    std::string text;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (members_[i]->ended) continue;
      text += fmt::format("{} waits for a lock, or a condition of one, of rank {}; ", i,
                          static_cast<int>(members_[i]->wanted_rank));
    }
    return text;
  }

  Prng prng_;
  std::vector<std::unique_ptr<Member>> members_;
  // Some orders need many changes, drawn from all that can go on; some need one thread to stand
  // still for long: then the one of the highest rank goes on, and ranks change now and then.
  // (Burckhardt et al., ASPLOS 2010)
  bool goes_by_rank_ = false;
  uint64_t one_of_ = 1;  // uses one of so many possible switches
  uint64_t turns_ = 0;
  uint64_t changes_ = 0;
};

Schedule* schedule = nullptr;             // while they run
thread_local std::optional<size_t> self;  // none: this thread is not in the schedule

}  // namespace

uint64_t Turns::Run() {
  QUIRE_CHECK(schedule == nullptr && !bodies_.empty());
  fmt::format_to_n(epitaph.data(), epitaph.size() - 1, "turns: the seed is {}\n\0", seed_);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, SayEpitaph);
  const SyncPointHandler at_points([](std::string_view) { Yield(); });
  Schedule order(seed_, bodies_.size());
  schedule = &order;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < bodies_.size(); ++i) {
      threads.emplace_back([this, i] {
        self = i;
        schedule->AwaitTurn(i);
        bodies_[i]();
        self.reset();  // the end of a thread is not in the schedule
        schedule->End(i);
      });
    }
    order.Begin();
  }
  schedule = nullptr;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, SIG_DFL);
  return order.changes();
}

void Turns::Yield() {
  if (self) schedule->Offer(*self);
}

namespace {

/// Takes what `try_lock` takes.
template <typename TryLock>
void LockInTurn(const void* lock, LockRank rank, TryLock try_lock) {
  Turns::Yield();
  while (!try_lock()) schedule->WaitFor(*self, lock, rank);
}

void GiveBackInTurn(const void* lock) {
  if (!self) return;
  schedule->GaveBack(lock);
  Turns::Yield();
}

}  // namespace
}  // namespace quire::sim

// The mutexes of base/mutex.h, under the schedule.
namespace quire {

using sim::GiveBackInTurn;
using sim::LockInTurn;

namespace lock_ranks {
void CheckOrder(LockRank) {}
void Remember(LockRank) {}
void Forget(LockRank) {}
}  // namespace lock_ranks

void Mutex::Lock() {
  if (!sim::self) return mutex_.lock();
  LockInTurn(this, rank_, [this] { return mutex_.try_lock(); });
}

void Mutex::Unlock() {
  mutex_.unlock();
  GiveBackInTurn(this);
}

void SharedMutex::Lock() {
  if (!sim::self) return mutex_.lock();
  LockInTurn(this, rank_, [this] { return mutex_.try_lock(); });
}

void SharedMutex::Unlock() {
  mutex_.unlock();
  GiveBackInTurn(this);
}

void SharedMutex::LockShared() {
  if (!sim::self) return mutex_.lock_shared();
  LockInTurn(this, rank_, [this] { return mutex_.try_lock_shared(); });
}

void SharedMutex::UnlockShared() {
  mutex_.unlock_shared();
  GiveBackInTurn(this);
}

// No thread is woken without a reason here, so a wake-up that is missing shows as a deadlock.
void CondVar::Wait(Mutex& mutex) {
  QUIRE_CHECK_MSG(sim::self.has_value(), "turns: nobody would wake this thread");
  mutex.mutex_.unlock();
  sim::schedule->GaveBack(&mutex);
  sim::schedule->WaitFor(*sim::self, this, mutex.rank_);
  LockInTurn(&mutex, mutex.rank_, [&] { return mutex.mutex_.try_lock(); });
}

// The time may be over at any moment, except for a wait without limit.
void CondVar::WaitFor(Mutex& mutex, uint64_t timeout_us) {
  if (!sim::self) return;
  if (timeout_us == UINT64_MAX) return Wait(mutex);
  mutex.mutex_.unlock();
  sim::schedule->GaveBack(&mutex);
  sim::schedule->PassToOthers(*sim::self);
  LockInTurn(&mutex, mutex.rank_, [&] { return mutex.mutex_.try_lock(); });
}

void CondVar::NotifyOne() {
  if (sim::self) sim::schedule->WakeOne(this);
}

void CondVar::NotifyAll() {
  if (sim::self) sim::schedule->GaveBack(this);
}

}  // namespace quire

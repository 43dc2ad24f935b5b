#include "bench/quiet.h"

#include <sched.h>

#include <atomic>
#include <span>
#include <thread>
#include <vector>

#include "base/spin.h"
#include "bench/instructions.h"

namespace quire::bench {
namespace {

/// More are not held: with more processors, each is less often the other half of one of ours.
constexpr size_t kProcessorsHeldMax = 4;

/// Runs `each` once on every worker: the first ones wait for all others.
void OnEveryWorker(Executor& executor, const std::function<void(uint32_t worker)>& each) {
  const uint32_t workers = executor.worker_count();
  std::atomic<uint32_t> arrived = 0;
  const auto all_arrived = [&] { return arrived.load() == workers; };
  executor.ParallelFor(workers, [&](uint32_t, uint32_t worker) {
    each(worker);
    ++arrived;
    while (!Spin(all_arrived)) std::this_thread::yield();
  });
}

/// The processors that this process may use.
std::span<const int> Processors() {
  static const std::vector<int> processors = [] {
    cpu_set_t allowed;
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) found.push_back(cpu);
    }
    return found;
  }();
  return processors;
}

/// Lets the calling thread run on these alone. Where the system refuses, it runs anywhere.
void StayOn(std::span<const int> processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : processors) CPU_SET(cpu, &set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

/// Of the calling thread. False: the system refuses.
bool TrySetPriority(int priority) {
  const sched_param param = {.sched_priority = priority};
  return sched_setscheduler(0, priority > 0 ? SCHED_RR : SCHED_OTHER, &param) == 0;
}
bool SetRealTime(bool wanted) { return TrySetPriority(wanted ? 1 : 0); }

/// Asked once. Not under callgrind, which runs one thread at a time.
bool MayBeRealTime() {
  static const bool may = !IsCounted() && SetRealTime(true) && SetRealTime(false);
  return may;
}

/// A thread on every processor but the first, which keeps the processor idle while it is told to.
class Holders {
 public:
  Holders() {
    const std::span<const int> processors = Processors();
    if (processors.size() > kProcessorsHeldMax) return;
    for (size_t i = 1; i < processors.size(); ++i) {
      threads_.emplace_back([this, i, processor = processors.subspan(i, 1)] {
        StayOn(processor);
        SetRealTime(true);
        Loop(i);
      });
    }
  }
  ~Holders() {
    Announce(kEnd);
    for (std::thread& thread : threads_) thread.join();
  }

  /// All processors from number `first` on.
  void Hold(uint32_t first) {
    arrived_ = 0;
    Announce(first);
    const uint32_t count = first > threads_.size() ? 0 : threads_.size() + 1 - first;
    while (!Spin([&] { return arrived_.load() == count; })) std::this_thread::yield();
  }
  void Release() { Announce(kNobody); }

 private:
  static constexpr uint32_t kNobody = 255;
  static constexpr uint32_t kEnd = 0;

  // Numbered, so that none is taken for the one before.
  void Announce(uint32_t first) {
    order_.store(++orders_ << 8 | first);
    order_.notify_all();
  }

  void Loop(uint32_t number) {
    for (;;) {
      const uint32_t order = order_.load();
      const uint32_t first = order & 255;
      if (first == kEnd) return;
      if (first > number) {
        order_.wait(order);
        continue;
      }
      ++arrived_;
      while (order_.load(std::memory_order_relaxed) == order) Pause();
    }
  }

  uint32_t orders_ = 0;
  std::atomic<uint32_t> order_ = kNobody;
  std::atomic<uint32_t> arrived_ = 0;
  std::vector<std::thread> threads_;
};

Holders& AllHolders() {
  static Holders holders;
  return holders;
}

}  // namespace

void SetPriority(int priority) { static_cast<void>(TrySetPriority(priority)); }

void StayOnProcessor(uint32_t index) {
  const std::span<const int> processors = Processors();
  if (!processors.empty()) StayOn(processors.subspan(index % processors.size(), 1));
}

std::unique_ptr<Executor> MakePinnedPool(uint32_t threads) {
  const std::span<const int> processors = Processors();
  auto pool = MakeThreadPool(threads);
  const bool enough = pool->worker_count() <= processors.size();
  OnEveryWorker(*pool, [&](uint32_t worker) {
    StayOn(enough ? processors.subspan(worker, 1) : processors);
    if (worker > 0 && MayBeRealTime()) SetRealTime(true);
  });
  return pool;
}

QuietMoment::QuietMoment(Executor& executor) {
  if (MayBeRealTime()) {
    SetRealTime(true);
    AllHolders().Hold(executor.worker_count());
  }
  OnEveryWorker(executor, [](uint32_t) {});
}

QuietMoment::~QuietMoment() {
  if (!MayBeRealTime()) return;
  AllHolders().Release();
  SetRealTime(false);
}

}  // namespace quire::bench

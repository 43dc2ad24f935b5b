// Workers that take items from one counter. A decode step runs hundreds of small pieces of work
// with microseconds between them, so a worker looks for more for a moment before it goes to sleep;
// an idle engine uses no processor time.
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/spin.h"
#include "base/thread.h"
#include "quire/env.h"

namespace quire {
namespace {

class Inline final : public Executor {
 public:
  uint32_t worker_count() const override { return 1; }
  void Run(uint32_t items, void (*work)(void*, uint32_t, uint32_t), void* context) override {
    for (uint32_t item = 0; item < items; ++item) work(context, item, 0);
  }
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(uint32_t workers) {
    threads_.reserve(workers - 1);
    for (uint32_t worker = 1; worker < workers; ++worker) {
      // With fewer threads, or no memory for more, answers are slower but the same. No exception
      // may leave: the threads that run already could not be ended.
      try {
        threads_.push_back(StartThread([this, worker] { WorkerLoop(worker); }));
      } catch (const std::exception&) {
        break;
      }
    }
  }

  ~ThreadPool() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  uint32_t worker_count() const override { return static_cast<uint32_t>(threads_.size()) + 1; }

  void Run(uint32_t items, void (*work)(void*, uint32_t, uint32_t), void* context) override {
    QUIRE_CHECK_MSG(!running_.exchange(true, std::memory_order_acquire),
                    "one Run at a time, and none inside another");
    if (items <= 1 || threads_.empty()) {
      for (uint32_t item = 0; item < items; ++item) work(context, item, 0);
    } else {
      // No worker reads these three while waiting_items_ is 0.
      items_ = items;
      work_ = work;
      context_ = context;
      unfinished_items_.store(items, std::memory_order_relaxed);
      waiting_items_.store(items);  // from here on workers take items
      WakeSleepers(items - 1);
      TakeItems(0);
      AwaitFinish();
    }
    running_.store(false, std::memory_order_release);
  }

 private:
  // Runs items until none is left to take.
  //
  // The counter runs down and its last value is 0, so a thread that takes an item knows that its
  // Run is not over, and may read what that Run has set. A worker that slept through a whole Run
  // and wakes in the next one is no special case.
  void TakeItems(uint32_t worker) {
    uint32_t taken = 0;
    uint32_t waiting = waiting_items_.load(std::memory_order_relaxed);
    while (waiting != 0) {
      if (!waiting_items_.compare_exchange_weak(waiting, waiting - 1, std::memory_order_acquire,
                                                std::memory_order_relaxed)) {
        continue;
      }
      work_(context_, items_ - waiting, worker);
      ++taken;
      waiting = waiting_items_.load(std::memory_order_relaxed);
    }
    if (taken == 0) return;
    // The release publishes what the items wrote to the caller of Run.
    if (unfinished_items_.fetch_sub(taken) == taken && caller_sleeps_.load()) {
      PassThroughMutex();
      finished_.NotifyOne();
    }
  }

  // Sleeping and waking, here and for the caller, rest on sequential consistency: the sleeper says
  // that it sleeps and then looks for work, the other side puts work and then looks for sleepers.
  // One of the two sees the other.
  void WakeSleepers(uint32_t helpers) {
    const uint32_t sleepers = sleepers_.load();
    if (sleepers == 0) return;
    PassThroughMutex();
    if (helpers >= sleepers) {
      wake_.NotifyAll();
    } else {
      for (uint32_t i = 0; i < helpers; ++i) wake_.NotifyOne();
    }
  }

  // After this a sleeper has either seen the change, or waits and hears the notification. The mutex
  // is free again before that, so that threads that wake need not queue for it.
  void PassThroughMutex() { MutexLock lock(mutex_); }

  void AwaitFinish() {
    const auto finished = [this] { return unfinished_items_.load(std::memory_order_acquire) == 0; };
    if (Spin(finished)) return;
    MutexLock lock(mutex_);
    caller_sleeps_.store(true);
    while (unfinished_items_.load() != 0) finished_.Wait(mutex_);
    caller_sleeps_.store(false);
  }

  void WorkerLoop(uint32_t worker) {
    while (true) {
      TakeItems(worker);
      const auto has_work = [this] { return waiting_items_.load(std::memory_order_relaxed) != 0; };
      if (Spin(has_work)) continue;
      MutexLock lock(mutex_);
      sleepers_.fetch_add(1);
      while (waiting_items_.load() == 0 && !stopping_) wake_.Wait(mutex_);
      sleepers_.fetch_sub(1);
      if (stopping_) return;
    }
  }

  // Each on its own cache line: items are taken while others finish.
  alignas(64) std::atomic<uint32_t> waiting_items_ = 0;     // not taken yet
  alignas(64) std::atomic<uint32_t> unfinished_items_ = 0;  // not taken, or running
  alignas(64) uint32_t items_ = 0;
  void (*work_)(void*, uint32_t, uint32_t) = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> running_ = false;

  Mutex mutex_{LockRank::kLeaf};
  CondVar wake_;      // work, or the end
  CondVar finished_;  // no unfinished item
  std::atomic<uint32_t> sleepers_ = 0;
  std::atomic<bool> caller_sleeps_ = false;
  bool stopping_ QUIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // worker 1, 2, ...
};

}  // namespace

std::unique_ptr<Executor> MakeThreadPool(uint32_t workers) {
  if (workers <= 1) return std::make_unique<Inline>();
  return std::make_unique<ThreadPool>(workers);
}

}  // namespace quire

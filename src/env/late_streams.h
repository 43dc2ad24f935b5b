// Streams of a device that does not exist: work is done some time after it was enqueued, on each
// stream in its order, beside other streams in any order that nothing forbids.
#ifndef QUIRE_ENV_LATE_STREAMS_H_
#define QUIRE_ENV_LATE_STREAMS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/prng.h"
#include "quire/env.h"

namespace quire {

/// Work runs on the thread that enqueues, asks or waits, when the seed says so, or when a call
/// waits for it. A stream that no call waits for falls behind, so a missing Order shows as wrong
/// bytes.
///
/// Threads: any; work takes no lock below kLeaf and calls nothing of this
class LateStreams {
 public:
  static constexpr uint32_t kStreamsMax = 5;
  using Ends = std::array<uint64_t, kStreamsMax>;  // of each stream

  /// Everything on one stream up to a moment, and the work that must come before the stream's next.
  struct Mark {
    uint32_t stream = 0;
    uint64_t end = 0;
    Ends after{};
  };

  LateStreams(std::string_view name, uint64_t seed) : name_(name), prng_(seed) {}

  /// Throws std::bad_alloc: nothing is enqueued.
  void Enqueue(uint32_t stream, std::function<void()> work) {
    MutexLock lock(mutex_);
    Queue& queue = queues_[stream];
    queue.waiting.push_back({.work = std::move(work), .after = queue.after});
    ++queue.enqueued;
    // Streams are behind each other by as much as a seed says.
    const auto lucky = static_cast<uint32_t>(prng_.NextBelow(kStreamsMax + 1));
    if (lucky < kStreamsMax) RunSome(lucky, prng_.NextBelow(3));
    if (queue.waiting.size() > kWaitingMax) RunSome(stream, kWaitingMax / 2);
  }
  /// The next work on `after` runs after the work that `before` has now.
  void Order(uint32_t before, uint32_t after) {
    MutexLock lock(mutex_);
    const Queue& first = queues_[before];
    Ends& ends = queues_[after].after;
    for (uint32_t i = 0; i < kStreamsMax; ++i) ends[i] = std::max(ends[i], first.after[i]);
    ends[before] = first.enqueued;
  }
  Mark Now(uint32_t stream) const {
    MutexLock lock(mutex_);
    return {.stream = stream, .end = queues_[stream].enqueued, .after = queues_[stream].after};
  }
  bool IsDone(const Mark& mark) const {
    MutexLock lock(mutex_);
    return IsReached(mark);
  }
  /// The same; polling also runs some more work.
  bool Poll(const Mark& mark) {
    MutexLock lock(mutex_);
    for (uint32_t stream = 0; stream < kStreamsMax; ++stream) {
      RunSome(stream, prng_.NextBelow(4));
    }
    return IsReached(mark);
  }
  /// Runs the work up to a mark, and of the other work only what must come before it.
  void RunUpTo(const Mark& mark) {
    MutexLock lock(mutex_);
    Reach(mark);
  }
  void RunAll() {
    MutexLock lock(mutex_);
    for (uint32_t stream = 0; stream < kStreamsMax; ++stream) {
      Reach({.stream = stream, .end = queues_[stream].enqueued});
    }
  }

  /// The device fails when so much more work has begun: nothing is done from then on.
  void FailAfter(uint64_t count) {
    MutexLock lock(mutex_);
    fails_at_ = done() + count;
  }
  /// Works again as before FailAfter; work that was not done until now is lost.
  void Repair() {
    MutexLock lock(mutex_);
    for (Queue& queue : queues_) {
      queue.waiting.clear();
      queue.done = queue.enqueued;
    }
    fails_at_ = UINT64_MAX;
    failed_ = false;
  }
  /// Errors: kIo names the device and the work at which it failed
  Result<void> outcome() const {
    MutexLock lock(mutex_);
    if (!failed_) return {};
    return Fail(ErrorCode::kIo, std::string(name_) + ": the device failed at operation " +
                                    std::to_string(fails_at_));
  }

  uint64_t enqueued_total() const {
    MutexLock lock(mutex_);
    uint64_t sum = 0;
    for (const Queue& queue : queues_) sum += queue.enqueued;
    return sum;
  }
  uint64_t done_total() const {
    MutexLock lock(mutex_);
    return done();
  }

 private:
  static constexpr size_t kWaitingMax = 24;

  struct Work {
    std::function<void()> work;
    Ends after{};
  };
  struct Queue {
    std::deque<Work> waiting;
    Ends after{};  // for the next work
    uint64_t enqueued = 0;
    uint64_t done = 0;
  };

  uint64_t done() const QUIRE_REQUIRES(mutex_) {
    uint64_t sum = 0;
    for (const Queue& queue : queues_) sum += queue.done;
    return sum;
  }
  void RunSome(uint32_t stream, uint64_t count) QUIRE_REQUIRES(mutex_) {
    const Queue& queue = queues_[stream];
    Reach({.stream = stream, .end = std::min(queue.done + count, queue.enqueued)});
  }
  bool IsReached(const Mark& mark) const QUIRE_REQUIRES(mutex_) {
    bool reached = queues_[mark.stream].done >= mark.end;
    for (uint32_t i = 0; i < kStreamsMax; ++i) reached &= queues_[i].done >= mark.after[i];
    return reached;
  }
  void ReachOthers(uint32_t stream, const Ends& ends) QUIRE_REQUIRES(mutex_) {
    for (uint32_t other = 0; other < kStreamsMax; ++other) {
      if (other == stream || queues_[other].done >= ends[other]) continue;
      Reach({.stream = other, .end = ends[other]});
    }
  }
  void Reach(const Mark& mark) QUIRE_REQUIRES(mutex_) {
    ReachOthers(mark.stream, mark.after);
    Queue& queue = queues_[mark.stream];
    while (queue.done < mark.end) {
      const Ends after = queue.waiting.front().after;
      ReachOthers(mark.stream, after);
      const std::function<void()> work = std::move(queue.waiting.front().work);
      queue.waiting.pop_front();
      failed_ = failed_ || done() >= fails_at_;
      ++queue.done;
      if (!failed_) work();
    }
  }

  const std::string name_;
  mutable Mutex mutex_{LockRank::kDeviceStreams};
  std::array<Queue, kStreamsMax> queues_ QUIRE_GUARDED_BY(mutex_);
  uint64_t fails_at_ QUIRE_GUARDED_BY(mutex_) = UINT64_MAX;
  bool failed_ QUIRE_GUARDED_BY(mutex_) = false;
  Prng prng_ QUIRE_GUARDED_BY(mutex_);
};

/// Of a mark.
///
/// Lifetime: the streams must outlive it
class LateFence final : public Fence {
 public:
  LateFence(LateStreams& streams, LateStreams::Mark mark) : streams_(streams), mark_(mark) {}
  bool IsDone() const override { return streams_.Poll(mark_); }
  void Wait() override { streams_.RunUpTo(mark_); }

 private:
  LateStreams& streams_;
  const LateStreams::Mark mark_;
};

}  // namespace quire

#endif  // QUIRE_ENV_LATE_STREAMS_H_

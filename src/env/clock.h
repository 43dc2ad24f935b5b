// Time as an argument: nothing below the programs reads a clock it was not given.
#ifndef QUIRE_ENV_CLOCK_H_
#define QUIRE_ENV_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "quire/env.h"

namespace quire {

/// The machine's monotonic clock.
class MonotonicClock final : public Clock {
 public:
  uint64_t NowMicros() const override {
    const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(since_boot).count());
  }
};

/// The one that programs share. Lives for ever.
inline const Clock& SystemClock() {
  static const MonotonicClock clock;
  return clock;
}

/// A clock that a test moves by hand.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(uint64_t now_us = 0) : now_us_(now_us) {}

  uint64_t NowMicros() const override { return now_us_.load(std::memory_order_acquire); }
  void Advance(uint64_t us) { now_us_.fetch_add(us, std::memory_order_acq_rel); }

 private:
  std::atomic<uint64_t> now_us_;
};

}  // namespace quire

#endif  // QUIRE_ENV_CLOCK_H_

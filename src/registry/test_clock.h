// A clock that the registry's tests move by hand.
#ifndef QUIRE_REGISTRY_TEST_CLOCK_H_
#define QUIRE_REGISTRY_TEST_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "quire/env.h"

namespace quire::registry {

class TestClock final : public Clock {
 public:
  explicit TestClock(uint64_t now_us) : now_us_(now_us) {}

  uint64_t NowMicros() const override { return now_us_.load(); }
  void Advance(uint64_t us) { now_us_ += us; }

 private:
  std::atomic<uint64_t> now_us_;
};

}  // namespace quire::registry

#endif  // QUIRE_REGISTRY_TEST_CLOCK_H_

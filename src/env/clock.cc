#include "env/clock.h"

#include <chrono>

namespace quire {
namespace {

class MonotonicClock final : public Clock {
 public:
  uint64_t NowMicros() const override {
    const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(since_boot).count());
  }
};

}  // namespace

const Clock& SystemClock() {
  static const MonotonicClock clock;
  return clock;
}

}  // namespace quire

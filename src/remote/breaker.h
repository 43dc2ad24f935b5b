// Whether a service that fails is asked.
#ifndef QUIRE_REMOTE_BREAKER_H_
#define QUIRE_REMOTE_BREAKER_H_

#include <algorithm>
#include <cstdint>

#include "base/prng.h"
#include "quire/disk_store.h"

namespace quire::remote {

/// Opens after several failures in a row, and is closed by a probe that succeeds. Probes come after
/// 0.25 s, then after twice as long each time, up to 15 s, less a random part, so that machines do
/// not come back all at once.
class Breaker {
 public:
  explicit Breaker(uint64_t seed) : prng_(seed) {}

  BreakerState state() const { return state_; }
  bool MayAsk() const { return state_ == BreakerState::kClosed; }
  bool MayProbe(uint64_t now_us) const {
    return state_ == BreakerState::kOpen && now_us >= probe_us_;
  }
  void OnProbe() { state_ = BreakerState::kProbing; }
  void OnSuccess() {
    state_ = BreakerState::kClosed;
    failures_ = 0;
    pause_us_ = kPauseMinUs;
  }
  /// True: it opens now.
  bool OnFailure(uint64_t now_us) {
    if (state_ == BreakerState::kOpen) return false;
    const bool was_closed = state_ == BreakerState::kClosed;
    if (was_closed && ++failures_ < kFailuresMax) return false;
    Open(now_us);
    return was_closed;
  }
  /// True: it opens now. For a service that has never answered, which is not tried five times.
  bool Trip(uint64_t now_us) {
    const bool was_closed = state_ == BreakerState::kClosed;
    if (state_ != BreakerState::kOpen) Open(now_us);
    return was_closed;
  }
  /// It does not do what it should however often it is asked: credentials, another fleet's key.
  bool OnRefusal(uint64_t now_us) {
    const bool was_closed = state_ == BreakerState::kClosed;
    pause_us_ = kPauseMaxUs;
    Open(now_us);
    return was_closed;
  }

 private:
  static constexpr uint32_t kFailuresMax = 5;
  static constexpr uint64_t kPauseMinUs = 250'000;
  static constexpr uint64_t kPauseMaxUs = 15'000'000;

  void Open(uint64_t now_us) {
    state_ = BreakerState::kOpen;
    probe_us_ = now_us + pause_us_ - prng_.NextBelow(pause_us_ / 4);
    pause_us_ = std::min(2 * pause_us_, kPauseMaxUs);
  }

  BreakerState state_ = BreakerState::kClosed;
  uint32_t failures_ = 0;  // in a row
  uint64_t pause_us_ = kPauseMinUs;
  uint64_t probe_us_ = 0;
  Prng prng_;
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_BREAKER_H_

// Time per unit of what was done lately: an average that forgets, so that one slow hour of a disk
// does not decide for the rest of the day.
#ifndef QUIRE_SERVE_RECENT_RATE_H_
#define QUIRE_SERVE_RECENT_RATE_H_

#include <cstdint>
#include <optional>

namespace quire::serve {

/// Threads: one
class RecentRate {
 public:
  /// What is not seen again for so long is not known any more: it may have become faster, and an
  /// engine that avoids it would not notice.
  static constexpr uint64_t kKnownUs = 60'000'000;

  /// So many units took so long. All that was seen before weighs three quarters of what it did.
  void Add(uint64_t us, uint64_t units, uint64_t now_us) {
    if (units == 0) return;
    us_ = kKept * us_ + static_cast<double>(us);
    units_ = kKept * units_ + static_cast<double>(units);
    seen_us_ = now_us;
  }
  std::optional<double> UsPerUnit(uint64_t now_us) const {
    if (units_ == 0 || now_us - seen_us_ > kKnownUs) return std::nullopt;
    return us_ / units_;
  }

 private:
  static constexpr double kKept = 0.75;

  double us_ = 0;
  double units_ = 0;
  uint64_t seen_us_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_RECENT_RATE_H_

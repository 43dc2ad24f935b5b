// When the records of a cold store were used, and what a segment of them is worth.
#ifndef QUIRE_TIER_USE_CLOCK_H_
#define QUIRE_TIER_USE_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace quire::tier {

/// Counts uses of records. Blocks of a chain are written, read and handed out from its front on,
/// and no lookup finds a block without those before it. So the time of a use lies the further back
/// the deeper the record is in its chain: of one walk the front has the latest time, the end the
/// earliest, and what goes first is the end.
///
/// Threads: one at a time
class UseClock {
 public:
  /// The time of a use of a record that has so many blocks before it; never 0.
  uint32_t Use(uint64_t block_index) {
    ++now_;
    // Each block of the walk adds one.
    return now_ - static_cast<uint32_t>(2 * std::min<uint64_t>(block_index, kDepthMax));
  }
  uint32_t now() const { return now_; }
  /// Goes on behind a time that a former run has given.
  void GoOnFrom(uint32_t used) { now_ = std::max(now_, used); }

 private:
  static constexpr uint32_t kDepthMax = 1 << 20;  // deeper blocks count as so deep

  uint32_t now_ = 2 * kDepthMax;
};

/// What a record is worth that was used last at this time: the longer ago, the less likely it is
/// used again soon.
inline double WorthOf(uint32_t used, uint32_t now) {
  return 1.0 / (1.0 + static_cast<double>(now - used));
}

}  // namespace quire::tier

#endif  // QUIRE_TIER_USE_CLOCK_H_

// How much to evict at once.
#ifndef QUIRE_EVICT_BATCH_SIZE_H_
#define QUIRE_EVICT_BATCH_SIZE_H_

#include <algorithm>
#include <cstdint>

namespace quire::evict {

/// Evicts what is needed now and, the more of the latest requests had to evict, the closer to a
/// whole request's need in advance.
///
/// Threads: not synchronised
class BatchSize {
 public:
  /// A request needs `needed`, of which `unused` are there; returns how much to evict. At most an
  /// eighth of `capacity` is evicted in advance.
  ///
  /// Units: blocks or bytes, the same in every call
  uint64_t Next(uint64_t needed, uint64_t unused, uint64_t capacity) {
    const bool is_tight = needed > unused;
    pressure_ += kNew * ((is_tight ? 1.0 : 0.0) - pressure_);
    if (!is_tight) return 0;
    demand_ += kNew * (static_cast<double>(needed) - demand_);
    const auto in_advance = static_cast<uint64_t>(pressure_ * demand_);
    return needed - unused + std::min(in_advance, capacity / 8);
  }

  /// Share of the latest requests that had to evict, 0 to 1.
  double pressure() const { return pressure_; }

 private:
  static constexpr double kNew = 1.0 / 16;  // weight of the latest request

  double pressure_ = 0;
  double demand_ = 0;  // of those that had to evict, on average
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_BATCH_SIZE_H_

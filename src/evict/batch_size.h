// How much to evict at once.
#ifndef QUIRE_EVICT_BATCH_SIZE_H_
#define QUIRE_EVICT_BATCH_SIZE_H_

#include <cstdint>

namespace quire::evict {

/// Aggressive when room is tight, conservative when it is not: evicts what is needed now and, the
/// more of the latest requests had to evict, the closer to a whole request's need in advance.
///
/// Threads: not synchronised
class BatchSize {
 public:
  /// A request needs `needed`, of which `unused` are there; returns how much to evict. At most an
  /// eighth of `capacity` is evicted in advance.
  ///
  /// Units: blocks or bytes, the same in every call
  uint64_t Next(uint64_t needed, uint64_t unused, uint64_t capacity);

  /// Share of the latest requests that had to evict, 0 to 1.
  double pressure() const { return pressure_; }

 private:
  double pressure_ = 0;
  double demand_ = 0;  // of those that had to evict, on average
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_BATCH_SIZE_H_

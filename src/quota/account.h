// What one party holds of a budget that many share: its quota and its floor. Pure arithmetic.
#ifndef QUIRE_QUOTA_ACCOUNT_H_
#define QUIRE_QUOTA_ACCOUNT_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace quire::quota {

/// Bytes of one party. The quota is a hard limit; below the floor nothing is taken for others.
///
/// Units:   bytes
/// Threads: not synchronised; the caller holds its lock
class Account {
 public:
  /// Needs floor_bytes <= quota_bytes.
  Account(uint64_t quota_bytes, uint64_t floor_bytes)
      : quota_bytes_(quota_bytes), floor_bytes_(floor_bytes) {
    QUIRE_CHECK(floor_bytes <= quota_bytes);
  }

  /// Needs bytes <= capacity_bytes().
  void Charge(uint64_t bytes) {
    QUIRE_CHECK_MSG(bytes <= capacity_bytes(), "a charge of " + std::to_string(bytes) +
                                                   " bytes is over the quota by " +
                                                   std::to_string(bytes - capacity_bytes()));
    used_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  }
  void Refund(uint64_t bytes) {
    QUIRE_CHECK(bytes <= used_bytes_);
    used_bytes_ -= bytes;
  }

  uint64_t quota_bytes() const { return quota_bytes_; }
  uint64_t floor_bytes() const { return floor_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  /// What the quota still allows.
  uint64_t capacity_bytes() const { return quota_bytes_ - used_bytes_; }

  /// Others may evict so much of it now.
  bool MayLose(uint64_t bytes) const {
    return bytes <= used_bytes_ && used_bytes_ - bytes >= floor_bytes_;
  }

  /// What others can surely get from it by evicting victims, of which it has `evictable_bytes` in
  /// all, until the next one would cut into the floor. No victim is larger than `victim_bytes`;
  /// `same_size`: all are exactly so large.
  uint64_t Spare(uint64_t evictable_bytes, uint64_t victim_bytes, bool same_size) const {
    const uint64_t above = used_bytes_ - std::min(used_bytes_, floor_bytes_);
    if (evictable_bytes <= above) return evictable_bytes;
    if (same_size) return above - above % victim_bytes;
    return above - std::min(above, victim_bytes - 1);
  }

 private:
  uint64_t quota_bytes_;
  uint64_t floor_bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

}  // namespace quire::quota

#endif  // QUIRE_QUOTA_ACCOUNT_H_

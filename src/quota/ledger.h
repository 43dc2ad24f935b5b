// Bytes charged against one hard limit, and the bytes of one party in a shared budget. Pure
// arithmetic: the caller knows what the bytes are.
#ifndef QUIRE_QUOTA_LEDGER_H_
#define QUIRE_QUOTA_LEDGER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace quire::quota {

/// Charge before taking, refund after giving back.
///
/// Units:   bytes
/// Threads: any; no lock. used_bytes() never exceeds limit_bytes(), not even for a moment
class Ledger {
 public:
  /// Every charge is also made to `shared`, if there is one: a budget of several ledgers, which
  /// must outlive them.
  explicit Ledger(uint64_t limit_bytes, Ledger* shared = nullptr)
      : limit_bytes_(limit_bytes), shared_(shared) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Charges all of `bytes`, or nothing when they do not fit.
  [[nodiscard]] bool TryCharge(uint64_t bytes);
  /// Takes back a charge. Giving back more than is charged is a bug.
  void Refund(uint64_t bytes);
  /// Moves the limit and begins a new peak. Not below what is charged, and not beside TryCharge:
  /// either is a bug.
  void SetLimit(uint64_t bytes);

  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  /// Of a shared budget other ledgers may take some before it is charged.
  uint64_t available_bytes() const {
    const uint64_t limit_bytes = this->limit_bytes();
    const uint64_t own_bytes = limit_bytes - std::min(limit_bytes, used_bytes());
    return shared_ == nullptr ? own_bytes : std::min(own_bytes, shared_->available_bytes());
  }
  /// The most that was charged at one time since the limit was set.
  uint64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> limit_bytes_;
  Ledger* const shared_;
  std::atomic<uint64_t> used_bytes_ = 0;
  std::atomic<uint64_t> peak_bytes_ = 0;
};

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

  /// Needs floor_bytes <= quota_bytes, and no more in use than the new quota.
  void SetLimits(uint64_t quota_bytes, uint64_t floor_bytes) {
    QUIRE_CHECK(floor_bytes <= quota_bytes && used_bytes_ <= quota_bytes);
    quota_bytes_ = quota_bytes;
    floor_bytes_ = floor_bytes;
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

  /// Bytes that others can certainly get by evicting its victims (`evictable_bytes` in all) until
  /// the next one would cut into the floor. No victim is larger than `victim_bytes`; `same_size`:
  /// all are exactly so large.
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

#endif  // QUIRE_QUOTA_LEDGER_H_

// Bytes charged against one hard limit. Pure arithmetic: what the bytes are, the caller knows.
#ifndef QUIRE_QUOTA_LEDGER_H_
#define QUIRE_QUOTA_LEDGER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace quire::quota {

/// Charge before taking, refund after giving back.
///
/// Units:   bytes
/// Threads: any; no lock. used_bytes() never exceeds limit_bytes(), not even for a moment
class Ledger {
 public:
  /// What is charged here is charged to `shared` too, if there is one: a budget of several ledgers,
  /// which must outlive them.
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
  /// Of a shared budget others may take some before it is charged.
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

}  // namespace quire::quota

#endif  // QUIRE_QUOTA_LEDGER_H_

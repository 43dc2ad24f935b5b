#include "quota/ledger.h"

#include <string>

#include "base/check.h"

namespace quire::quota {

// Relaxed order throughout: the ledger protects no other memory, only its own sums, and those are
// exact because every change is one compare-and-swap.

bool Ledger::TryCharge(uint64_t bytes) {
  if (shared_ != nullptr && !shared_->TryCharge(bytes)) return false;
  const uint64_t limit_bytes = this->limit_bytes();
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes - used) {
      if (shared_ != nullptr) shared_->Refund(bytes);
      return false;
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));

  const uint64_t now = used + bytes;
  uint64_t peak = peak_bytes_.load(std::memory_order_relaxed);
  while (peak < now && !peak_bytes_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return true;
}

void Ledger::SetLimit(uint64_t bytes) {
  const uint64_t used = used_bytes();
  QUIRE_CHECK_MSG(used <= bytes, "a limit of " + std::to_string(bytes) + " bytes with " +
                                     std::to_string(used) + " charged");
  limit_bytes_.store(bytes, std::memory_order_relaxed);
  peak_bytes_.store(used, std::memory_order_relaxed);
}

void Ledger::Refund(uint64_t bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    QUIRE_CHECK_MSG(bytes <= used, "refund of " + std::to_string(bytes) + " bytes with " +
                                       std::to_string(used) + " charged");
  } while (!used_bytes_.compare_exchange_weak(used, used - bytes, std::memory_order_relaxed));
  if (shared_ != nullptr) shared_->Refund(bytes);
}

}  // namespace quire::quota

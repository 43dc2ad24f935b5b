#include "cache/shared_budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "quire/cache.h"

namespace quire {

SharedBudget::SharedBudget(uint64_t bytes, uint64_t bytes_max)
    : state_(std::make_unique<cache::BudgetState>(std::max(bytes, bytes_max))) {
  MutexLock lock(state_->mutex);
  state_->withheld_bytes = state_->ledger.limit_bytes() - bytes;
  QUIRE_CHECK(state_->ledger.TryCharge(state_->withheld_bytes));
}

SharedBudget::~SharedBudget() = default;

uint64_t SharedBudget::bytes() const {
  MutexLock lock(state_->mutex);
  return state_->ledger.limit_bytes() - state_->withheld_bytes;
}

uint64_t SharedBudget::used_bytes() const {
  MutexLock lock(state_->mutex);  // for one moment of both
  return state_->ledger.used_bytes() - state_->withheld_bytes;
}

Result<void> SharedBudget::Resize(uint64_t bytes) {
  MutexLock lock(state_->mutex);
  quota::Ledger& ledger = state_->ledger;
  if (bytes > ledger.limit_bytes()) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("shared budget: {} bytes are above the {} it was made for (bytes_max)",
                            bytes, ledger.limit_bytes()));
  }
  const uint64_t withheld_bytes = ledger.limit_bytes() - bytes;
  if (withheld_bytes <= state_->withheld_bytes) {
    ledger.Refund(state_->withheld_bytes - withheld_bytes);
  } else if (!ledger.TryCharge(withheld_bytes - state_->withheld_bytes)) {
    return Fail(ErrorCode::kBusy, fmt::format("shared budget: {} bytes are charged, more than {}",
                                              ledger.used_bytes() - state_->withheld_bytes, bytes));
  }
  state_->withheld_bytes = withheld_bytes;
  return {};
}

}  // namespace quire

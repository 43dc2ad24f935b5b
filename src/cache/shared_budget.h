// What caches charge when they pay from one budget.
#ifndef QUIRE_CACHE_SHARED_BUDGET_H_
#define QUIRE_CACHE_SHARED_BUDGET_H_

#include <cstdint>

#include "base/mutex.h"
#include "quota/ledger.h"

namespace quire::cache {

/// Threads: any
struct BudgetState {
  explicit BudgetState(uint64_t bytes_max) : ledger(bytes_max) {}

  // Its limit is the largest possible budget. The difference to the present budget is a charge
  // without an owner, so that lowering the budget is one charge, which succeeds or changes nothing
  // while other threads charge.
  quota::Ledger ledger;
  Mutex mutex{LockRank::kLeaf};
  uint64_t withheld_bytes QUIRE_GUARDED_BY(mutex) = 0;  // of the ledger
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SHARED_BUDGET_H_

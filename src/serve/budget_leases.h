// Bytes of the cache's budget that something outside the engine holds for a while, such as a
// training run in a process of its own on the same machine.
#ifndef QUIRE_SERVE_BUDGET_LEASES_H_
#define QUIRE_SERVE_BUDGET_LEASES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "serve/engine.h"

namespace quire::serve {

struct BudgetLease {
  uint64_t id = 0;
  std::string owner{};  // as its holder names itself
  uint64_t bytes = 0;

  bool operator==(const BudgetLease&) const = default;
};

/// The cache has what its operator gave it less what is leased. Where requests that run hold more
/// than is left, the engine preempts them, one after the other, until `wait_us` are over; they
/// go on when there is room. Memory beyond the cache's part goes back to the system.
///
/// Requests that do not fit beside the leases wait for their end.
///
/// Threads:  any but the one that turns the engine, which another one does until the last Take has
///           returned; one change at a time, the others wait
/// Lifetime: engine and cache must outlive it; nothing else may resize the cache
class BudgetLeases {
 public:
  BudgetLeases(Engine& engine, Cache& cache, const Clock& clock);

  /// Takes bytes out of the cache's budget until End: the number of the lease.
  ///
  /// Errors: kInvalidArgument no bytes, or no name of at most 256 bytes without control characters;
  ///         kTooLarge the budget less all leases has no more than that; kNoSpace the rest holds no
  ///         block, or less than the floors of tenants; kBusy requests that run hold more after
  ///         wait_us. Nothing changes then, but requests that gave way start again
  Result<uint64_t> Take(const std::string& owner, uint64_t bytes, uint64_t wait_us);
  /// More or less bytes for the same lease.
  ///
  /// Errors: kNotFound; as Take
  Result<void> Change(uint64_t id, uint64_t bytes, uint64_t wait_us);
  /// Its bytes are the cache's again. Where the cache cannot take them at once, Settle tries again.
  /// Waits for no other change.
  ///
  /// Errors: kNotFound
  Result<void> End(uint64_t id);
  /// `on_end` is called once when it ends, by whatever thread ends it, and must return at once.
  ///
  /// Errors: kNotFound it has ended
  Result<void> Listen(uint64_t id, std::function<void()> on_end);
  /// Another budget for the cache and all leases together.
  ///
  /// Errors: as Cache::Resize; kTooLarge the leases have more
  Result<void> Resize(uint64_t hot_bytes);
  /// From time to time: gives the cache what leases that ended gave back.
  void Settle();

  /// In the order they were taken.
  std::vector<BudgetLease> All() const;

 private:
  struct Held {
    BudgetLease lease;
    std::function<void()> on_end;
  };
  class Turn;

  Result<void> Fit(uint64_t cache_bytes, uint64_t wait_us);
  Result<void> CheckFits(uint64_t bytes, uint64_t before) const QUIRE_REQUIRES(mutex_);
  void EndTurn();
  uint64_t leased() const QUIRE_REQUIRES(mutex_);

  Engine& engine_;
  Cache& cache_;
  const Clock& clock_;
  mutable Mutex mutex_{LockRank::kLeaf};
  CondVar changed_;
  bool changing_ QUIRE_GUARDED_BY(mutex_) = false;  // one change of the budget at a time
  uint64_t whole_bytes_ QUIRE_GUARDED_BY(mutex_);   // of the cache and all leases
  uint64_t cache_bytes_ QUIRE_GUARDED_BY(mutex_);   // the cache's part, as it is
  uint64_t next_id_ QUIRE_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Held> held_ QUIRE_GUARDED_BY(mutex_);
};

/// A lease that ends with its holder.
class HeldLease {
 public:
  HeldLease(BudgetLeases& leases, uint64_t id) : leases_(leases), id_(id) {}
  ~HeldLease() { (void)leases_.End(id_); }
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

  uint64_t id() const { return id_; }
  BudgetLeases& leases() const { return leases_; }

 private:
  BudgetLeases& leases_;
  const uint64_t id_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_BUDGET_LEASES_H_

// What waiting requests wait for, and what wakes them.
#ifndef QUIRE_SERVE_WAITING_H_
#define QUIRE_SERVE_WAITING_H_

#include <cstdint>
#include <map>
#include <optional>

#include "serve/state.h"

namespace quire::serve {

/// For room, until another gives some back; and for a prefix that another request computes or
/// loads, until it is there or that one does not go on.
///
/// Threads:  one
/// Lifetime: the state must outlive it
class Waiting {
 public:
  explicit Waiting(EngineState& state) : state_(state) {}

  /// The shared domain that a tenant publishes in; none: its own.
  void SetDomain(TenantId tenant, TenantId domain);
  /// Where another request has more of what this one begins with on its way than is there: a wait
  /// for that.
  std::optional<Wait> ForPrefix(const Task& task) const;
  /// Some prefixes may be there now, or not be computed any more.
  void WakeForPrefix();

  /// What others hold may be free later; what cannot be given back is refused for good.
  bool CanWaitForRoom() const;
  void WaitForRoom(Task& task);
  /// Some came back.
  void WakeForRoom();
  /// After a step: wakes them where a request holds less than before.
  void LookForRoom();
  /// Looks for it again after outside_retry_us, whatever becomes of the engine's own.
  void RetryLater();
  void RetryIn(uint64_t us);
  /// Others outside may have given some back since then.
  void RetryOutside(uint64_t now_us);
  /// When to call RetryOutside.
  uint64_t retry_outside_us() const { return retry_outside_us_; }

  /// Takes those out that have ended: what they held is free, of those that streamed when the store
  /// has what they computed.
  void RemoveEnded();
  /// Ends the sequences of which it has; where nothing runs it waits so long for the others.
  void EndStreamed(uint64_t wait_us);

 private:
  bool Shares(const Task& a, const Task& b) const;
  std::optional<Wait> ForComputed(const Task& task) const;
  std::optional<Wait> ForLoaded(const Task& task) const;

  EngineState& state_;
  std::map<TenantId, TenantId> domains_;  // of tenants that share one
  uint64_t retry_outside_us_ = UINT64_MAX;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_WAITING_H_

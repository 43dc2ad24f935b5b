// How long the cache's lock is held, verb by verb.
#ifndef QUIRE_BENCH_CACHE_HOLDS_H_
#define QUIRE_BENCH_CACHE_HOLDS_H_

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "cache/core.h"
#include "quire/cache.h"

namespace quire::bench {

/// Times of the holds of a cache's lock during some calls.
///
/// Threads:  one, and no other thread uses the cache
/// Lifetime: the cache must outlive it
class HoldTimes final : private cache::HoldWatch {
 public:
  explicit HoldTimes(Cache& cache);
  ~HoldTimes() override;
  HoldTimes(const HoldTimes&) = delete;
  HoldTimes& operator=(const HoldTimes&) = delete;

  /// Runs a call and measures its holds.
  template <typename Call>
  void Of(const Call& call) {
    counts_ = true;
    const size_t before = held_ns_.size();
    call();
    counts_ = false;
    calls_ns_.push_back(
        std::accumulate(held_ns_.begin() + static_cast<ptrdiff_t>(before), held_ns_.end(), 0.0));
  }
  /// The number of holds, and the quantiles of single holds and of the sums over a call: the time
  /// that one hold for all would take.
  std::string ToText();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kHoldsMax = 1'000'000;

  void Begin() override;
  void End() override;

  cache::Core& core_;
  bool counts_ = false;
  Clock::time_point begin_{};
  std::vector<double> held_ns_{};
  std::vector<double> calls_ns_{};  // the holds of each call together
};

/// Acquire, Open and the end of a sequence, of a path of 12,500 blocks; with the policy `quire`
/// also Commit, Pin and View.
void AddHoldCases(std::vector<Case>& cases);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CACHE_HOLDS_H_

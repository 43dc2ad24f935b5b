// What the parts of `quire bench index` share.
#ifndef QUIRE_BENCH_INDEX_H_
#define QUIRE_BENCH_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/requests.h"
#include "quire/env.h"

namespace quire::bench {

/// Of the cases that replay a trace with a policy.
inline constexpr uint32_t kIndexCapacityBlocks = 10'000;

/// The case about the index's memory for a block, beside its limit. `measure` returns both sums.
struct Metadata {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
};
Case MetadataCase(const std::string& name, std::function<Metadata()> measure);

/// The requests of a trace, made when the first case needs them.
class LazyRequests {
 public:
  explicit LazyRequests(const Options& options) : options_(options) {}
  const Requests& Get() {
    if (made_ == nullptr) made_ = std::make_unique<Requests>(MakeRequests(options_));
    return *made_;
  }

 private:
  const Options options_;
  std::unique_ptr<Requests> made_;
};

/// Replays options.trace on one thread: lookups alone, lookups with insertion of what is missing,
/// and the same with a policy and a limit.
void AddTraceCases(const Options& options, std::vector<Case>& cases);

/// The same under locks of both kinds, with a policy: on one thread, on two that share a lock, and
/// on two with a root, a policy and a lock for each half of the conversations. Ratios are to one
/// thread under a Mutex.
void AddThreadCases(const std::string& trace_name, const std::shared_ptr<LazyRequests>& requests,
                    std::vector<Case>& cases);

/// The same on whole caches: on one thread, on two with one root and with a root each, and on two
/// with a cache each. Ratios are to one thread.
void AddCacheCases(const std::string& trace_name, const std::shared_ptr<LazyRequests>& requests,
                   std::vector<Case>& cases);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_INDEX_H_

// The live cache under a recorded service's requests, on one thread and on two: what a cache costs
// besides copying rows, of which there are as few as a model can have.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/index.h"
#include "bench/must.h"
#include "bench/requests.h"
#include "bench/trace_tokens.h"
#include "quire/cache.h"

namespace quire::bench {
namespace {

constexpr uint32_t kHeadDim = 8;
constexpr uint64_t kCapacityBytes = 46'000'000;  // about 10,000 blocks

// The time of the requests.
class TraceClock final : public Clock {
 public:
  uint64_t NowMicros() const override { return now_us_.load(std::memory_order_relaxed); }
  void Advance(uint64_t time_ms) {
    uint64_t now_us = now_us_.load(std::memory_order_relaxed);
    while (now_us < time_ms * 1000 && !now_us_.compare_exchange_weak(now_us, time_ms * 1000)) {
    }
  }

 private:
  std::atomic<uint64_t> now_us_ = 0;
};

class Served {
 public:
  Served(std::string policy, uint64_t hot_bytes)
      : cache_(
            Must(Cache::Create({.geometry = Geometry::Uniform(1, 1, kHeadDim),
                                .profile = NumericProfile::Uniform(Codec::kF16, kTraceBlockTokens),
                                .hot_bytes = hot_bytes,
                                .clock = &clock_,
                                .policy = std::move(policy)}))) {
    for (uint32_t i = 0; i < identities_.size(); ++i) identities_[i].adapter_version = i;
  }

  void Serve(const Request& request, uint32_t root) {
    clock_.Advance(request.time_ms);
    auto plan = Must(cache_->Acquire({.identity = &identities_[root], .tokens = request.tokens}));
    const uint64_t resident = plan.resident_tokens();
    const auto sequence = Must(cache_->Open(std::move(plan), {}));
    const auto missing = request.tokens.subspan(resident);
    const RowsView rows{.data = rows_.data(), .dtype = Codec::kF16, .token_stride = kHeadDim};
    for (uint64_t done = 0; done < missing.size();) {
      const uint64_t count = std::min<uint64_t>(missing.size() - done, kStepTokens);
      Must(sequence->Append(0,
                            {.key = rows, .value = rows, .tokens = static_cast<uint32_t>(count)}));
      Must(sequence->Commit(missing.subspan(done, count)));
      done += count;
    }
  }

 private:
  static constexpr uint64_t kStepTokens = 512;

  TraceClock clock_;
  std::unique_ptr<Cache> cache_;
  std::array<Identity, 2> identities_{};
  const std::array<uint16_t, kStepTokens * kHeadDim> rows_{};
};

struct CacheSetup {
  std::string policy;
  Division division;
  uint32_t caches = 1;
};

std::shared_ptr<Service> MakeCacheService(const Requests& requests, const CacheSetup& which) {
  const auto caches = std::make_shared<std::vector<std::unique_ptr<Served>>>();
  for (uint32_t i = 0; i < which.caches; ++i) {
    caches->push_back(std::make_unique<Served>(which.policy, kCapacityBytes / which.caches));
  }
  const uint32_t roots = which.division.roots;
  return std::make_shared<Service>(requests, which.division, [=](const Request& request) {
    (*caches)[request.root % caches->size()]->Serve(request, request.root % roots);
  });
}

}  // namespace

void AddCacheCases(const std::string& trace_name, const std::shared_ptr<LazyRequests>& requests,
                   std::vector<Case>& cases) {
  for (const std::string policy : {"lru", "quire"}) {
    for (const CacheSetup& which :
         {CacheSetup{.policy = policy, .division = {.threads = 1, .roots = 1}},
          CacheSetup{.policy = policy, .division = {.threads = 2, .roots = 1}},
          CacheSetup{.policy = policy, .division = {.threads = 2, .roots = 2}},
          CacheSetup{.policy = policy, .division = {.threads = 2, .roots = 2}, .caches = 2}}) {
      cases.push_back(
          {.name = fmt::format("cache+{}/{}/roots{}/caches{}/t{}", policy, trace_name,
                               which.division.roots, which.caches, which.division.threads),
           .prepare = [=]() -> Result<Subject> {
             const Requests& all = requests->Get();
             return BesideOneThread(all, MakeCacheService(all, which),
                                    MakeCacheService(all, {.policy = policy, .division = {}}));
           }});
    }
  }
}

}  // namespace quire::bench

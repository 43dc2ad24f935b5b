#include "bench/requests.h"

#include <atomic>
#include <latch>
#include <thread>

#include "base/prng.h"
#include "bench/pairs.h"
#include "bench/trace_tokens.h"

namespace quire::bench {

Requests MakeRequests(const Options& options) {
  constexpr uint64_t kRequestEvery_ms = 300;
  Requests made;
  for (const std::vector<uint64_t>& request : options.trace) {
    for (const uint64_t id : request) {
      AppendTraceBlock(id, made.tokens);
      made.keys.push_back(Prng(id).Next64());
    }
  }
  made.tokens.push_back(0);  // after the last request
  const std::span<const TokenId> tokens(made.tokens);
  const std::span<const uint64_t> keys(made.keys);
  uint64_t first = 0;
  for (const std::vector<uint64_t>& request : options.trace) {
    const uint64_t blocks = request.size();
    if (blocks == 0) continue;
    made.all.push_back(
        {.tokens = tokens.subspan(first * kTraceBlockTokens, blocks * kTraceBlockTokens + 1),
         .keys = keys.subspan(first, blocks),
         .time_ms = (made.all.size() + 1) * kRequestEvery_ms,
         .root = static_cast<uint32_t>(keys[first + (blocks > 1 ? 1 : 0)] >> 63)});
    first += blocks;
  }
  return made;
}

double ServeAll(const Requests& requests, const Division& division, uint32_t passes,
                const std::function<void(const Request&)>& serve) {
  const uint64_t count = passes * requests.all.size();
  struct alignas(64) Counter {  // nothing else on its cache line
    std::atomic<uint64_t> value = 0;
  };
  Counter next;
  std::latch start(division.threads);
  const auto work = [&](uint32_t thread) {
    start.arrive_and_wait();
    if (division.roots == 1) {
      for (uint64_t i = next.value++; i < count; i = next.value++) {
        serve(requests.all[i % requests.all.size()]);
      }
      return;
    }
    for (uint64_t i = 0; i < count; ++i) {
      const Request& request = requests.all[i % requests.all.size()];
      if (request.root % division.threads == thread) serve(request);
    }
  };
  const double begin_s = NowSeconds();
  {
    std::vector<std::jthread> others;
    for (uint32_t thread = 1; thread < division.threads; ++thread) {
      others.emplace_back(work, thread);
    }
    work(0);
  }
  const double seconds = NowSeconds() - begin_s;
  return static_cast<double>(passes * requests.keys.size()) / seconds / 1e6;
}

}  // namespace quire::bench

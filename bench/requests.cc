#include "bench/requests.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "base/prng.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
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

Service::Service(const Requests& requests, const Division& division,
                 std::function<void(const Request&)> serve)
    : requests_(requests),
      division_(division),
      serve_(std::move(serve)),
      executor_(MakePinnedPool(division.threads)) {
  for (uint32_t slice = 0; slice < kSlices; ++slice) Serve(slice);
}

double Service::Serve(uint32_t slice) {
  const uint64_t count = requests_.all.size();
  const uint64_t begin = count * slice / kSlices;
  const uint64_t end = count * (slice + 1) / kSlices;
  struct alignas(64) Counter {  // nothing else on its cache line
    std::atomic<uint64_t> value = 0;
  };
  Counter next{.value = begin};
  const auto serve = [&](uint64_t i) {
    Request request = requests_.all[i];
    request.time_ms += round_begin_ms_;
    serve_(request);
  };
  const double seconds = SecondsOf(*executor_, [&] {
    executor_->ParallelFor(division_.threads, [&](uint32_t root, uint32_t) {
      if (division_.roots == 1) {
        for (uint64_t i = next.value++; i < end; i = next.value++) serve(i);
      } else {
        for (uint64_t i = begin; i < end; ++i) {
          if (requests_.all[i].root % division_.threads == root) serve(i);
        }
      }
    });
  });
  if (slice == kSlices - 1 && count > 0) round_begin_ms_ += requests_.all.back().time_ms;
  return seconds;
}

Timed BesideOneThread(const Requests& requests, std::shared_ptr<Service> service,
                      std::shared_ptr<Service> alone) {
  return {.unit = "Mblocks/s",
          .amount = static_cast<double>(requests.keys.size()) * 1e-6,
          .places = Service::kSlices,
          .slice = fmt::format("{} requests", requests.all.size() / Service::kSlices),
          .work = [service = std::move(service)](uint32_t slice) { return service->Serve(slice); },
          .floor = [alone = std::move(alone)](uint32_t slice) { return alone->Serve(slice); }};
}

}  // namespace quire::bench

// A recorded trace as requests for an index or a cache.
#ifndef QUIRE_BENCH_REQUESTS_H_
#define QUIRE_BENCH_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bench/bench.h"
#include "quire/env.h"
#include "quire/identity.h"

namespace quire::bench {

/// One recorded request.
struct Request {
  std::span<const TokenId> tokens;  // [blocks, kTraceBlockTokens] and one more, as a prompt has
  std::span<const uint64_t> keys;   // [blocks]
  uint64_t time_ms = 0;
  uint32_t root = 0;  // of two

  uint64_t blocks() const { return keys.size(); }
};

struct Requests {
  std::vector<TokenId> tokens;
  std::vector<uint64_t> keys;
  std::vector<Request> all;
};

/// All requests of options.trace, one every 300 ms (about an hour for the conversation trace).
/// Conversations are divided among two roots by their second block: they often share the first.
Requests MakeRequests(const Options& options);

/// How requests are divided among threads.
struct Division {
  uint32_t threads = 1;
  uint32_t roots = 1;  // 1: a free thread takes the next request; 2: thread i serves root i
};

/// Serves all requests again and again, a slice of them at a time.
class Service {
 public:
  static constexpr uint32_t kSlices = 16;  // that make all requests

  /// `serve` gets a request and its root among division.roots; times go on rising in later rounds.
  /// Serves one round at once, so that what follows finds warm tables.
  Service(const Requests& requests, const Division& division,
          std::function<void(const Request&)> serve);

  /// Seconds for one slice. Slices come in order.
  double Serve(uint32_t slice);

 private:
  const Requests& requests_;
  const Division division_;
  const std::function<void(const Request&)> serve_;
  const std::unique_ptr<Executor> executor_;
  uint64_t round_begin_ms_ = 0;
};

/// The case of a service beside one that does the same on one thread, in megablocks a second of all
/// threads together.
Timed BesideOneThread(const Requests& requests, std::shared_ptr<Service> service,
                      std::shared_ptr<Service> alone);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_REQUESTS_H_

// A recorded service's requests on the parts that a cache is made of: index, ledger and policy.
#ifndef QUIRE_APPS_REPLAYER_H_
#define QUIRE_APPS_REPLAYER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/quire/trace.h"
#include "evict/policies.h"
#include "quire/identity.h"

namespace quire::app {

/// A trace as the index wants it: every block with the tokens that its id gives.
class ReplayInput {
 public:
  explicit ReplayInput(const Trace& trace);
  /// With keys of the caller's choice, by id.
  ReplayInput(const Trace& trace, const std::function<uint64_t(uint64_t)>& key_of);

  struct Request {
    uint64_t first_block = 0;  // in blocks()
    uint32_t blocks = 0;
    uint64_t time_ms = 0;  // never goes back
    uint64_t prompt_tokens = 0;
    uint64_t output_tokens = 0;
  };

  const std::vector<Request>& requests() const { return requests_; }
  /// Of all requests, one after the other: numbers from 0 without gaps, equal ids, equal numbers.
  const std::vector<uint32_t>& blocks() const { return blocks_; }
  uint64_t unique_blocks() const { return keys_.size(); }
  /// For every entry of blocks(): the next request with the same block. UINT64_MAX: none.
  std::vector<uint64_t> NextUses() const;

  /// Appends the prompt's tokens, and the names of its blocks for a policy.
  void AppendPrompt(const Request& request, std::vector<TokenId>& tokens,
                    std::vector<uint64_t>& keys) const;

 private:
  std::vector<Request> requests_;
  std::vector<uint32_t> blocks_;
  std::vector<TokenId> tokens_;  // [unique blocks, bench::kTraceBlockTokens]
  std::vector<uint64_t> keys_;   // by block number
};

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t hit_blocks = 0;
  uint64_t evicted_blocks = 0;
  uint64_t digest = 0;  // of which blocks were evicted, in order: equal runs, equal digests
  double seconds = 0;   // of the thread, in index, ledger and policy
  double hit_ratio() const;
  double blocks_per_second() const;
};

/// What happened, for whoever compares it with a live cache.
struct ReplayLog {
  std::vector<uint32_t> hits;     // blocks, by request
  std::vector<uint64_t> victims;  // keys, in the order they went
};

struct ReplayOptions {
  /// Told the requests done.
  std::function<void(uint64_t)> progress = [](uint64_t) {};
  /// Filled, if not null.
  ReplayLog* log = nullptr;
  /// What the policy may remember; none: as in a cache of so many slots of 256 KiB or more.
  std::optional<uint64_t> history_bytes = {};
};

/// Replays all requests within `capacity_blocks`. A hit is a block of the leading run that is
/// there; all blocks of a prompt are inserted as far as they fit, and its first block ends as the
/// most recent.
///
/// Policies hear what a live cache tells them, in its order: time, what is leased again, what is
/// evicted for the rest, and when the request ends its facts and its blocks. So hits and victims
/// are those of a cache of one more block, in which the part of the prompt lies that fills no
/// block. It differs where traces say too little: a live cache keeps whole blocks of the output,
/// publishes no partial last block, and computes the last token of a prompt, so that one of whole
/// blocks leaves the last one to be computed.
///
/// Shape: policy is a name of ReplayPolicies()
ReplayResult Replay(const ReplayInput& input, uint64_t capacity_blocks, const std::string& policy,
                    const ReplayOptions& options = {});

struct CurvePoint {
  uint64_t capacity_blocks = 0;
  double hit_ratio = 0;
};

/// What recency would hit at these capacities, from one pass over a sample of the blocks.
std::vector<CurvePoint> EstimateCurve(const ReplayInput& input,
                                      const std::vector<uint64_t>& capacities);

/// The policies of the library, and `belady`.
std::vector<std::string> ReplayPolicies();

}  // namespace quire::app

#endif  // QUIRE_APPS_REPLAYER_H_

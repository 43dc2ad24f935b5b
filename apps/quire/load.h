// An open-loop load generator: sends the requests of a trace to a running server when they are due,
// whether or not earlier ones were answered, and measures what a client sees.
#ifndef QUIRE_APPS_LOAD_H_
#define QUIRE_APPS_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apps/quire/trace.h"
#include "quire/error.h"

namespace quire::app {

struct LoadOptions {
  std::string url;  // http://HOST:PORT
  std::string key;  // empty: none is sent
  double rate = 2;  // requests per second; the recorded gaps are scaled to it. 0: all at once
  uint64_t requests = 96;           // of the trace, the first
  uint64_t blocks_max = 48;         // of a prompt; longer ones are cut
  uint32_t answer_tokens_max = 24;  // recorded answers are scaled by 1/16 and cut
  bool reuse = true;                // false: the server computes every prompt
  double timeout_s = 600;           // of one request
};

struct LoadReport {
  uint64_t requests = 0;
  uint64_t failed = 0;         // not answered with 200 and a whole stream
  std::string first_failure;   // why
  double seconds = 0;          // from the first request to the last answer
  uint64_t prompt_tokens = 0;  // of the answered
  uint64_t cached_tokens = 0;
  uint64_t generated_tokens = 0;
  double unlimited_hits = 0;     // share of prompt tokens that a cache that forgets nothing finds
  std::vector<double> first_ms;  // from when a request was due to its first token
  std::vector<double> next_ms;   // between pieces of an answer
};

/// A prompt has 16 tokens below 256 for each block of the trace, which the block's id alone
/// decides: equal ids, equal prefixes.
///
/// Errors: kInvalidArgument the URL, or a trace without blocks; kIo there is no answer
Result<LoadReport> RunLoad(const Trace& trace, const LoadOptions& options);

}  // namespace quire::app

#endif  // QUIRE_APPS_LOAD_H_
